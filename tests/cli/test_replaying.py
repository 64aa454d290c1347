"""`treadle replay`: one finished run, every bit."""

from pathlib import Path


def test_a_deterministic_run_is_replayed(treadle, words_file):
    assert treadle("train", words_file, "--set", "engine.deterministic=true", "--view", "none").code == 0
    (folder,) = Path("runs").iterdir()
    said = treadle("replay", folder)
    assert said.code == 0
    tokens, weights = said.out.splitlines()
    assert tokens.startswith("tokens ")
    assert tokens.endswith("sampled again, all the same")
    assert weights == "weights  after 2 updates the same"


def test_a_folder_that_is_no_run_is_one_line(treadle):
    said = treadle("replay", "nowhere")
    assert said.code == 2
    assert "there is no such folder" in said.line
