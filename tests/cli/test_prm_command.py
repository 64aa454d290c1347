"""`treadle prm`: a process reward model from a run folder."""

from pathlib import Path


def test_a_run_makes_one_and_says_how_good_it_is(treadle, words_file):
    sets = ("--set", "coldstart=none", "--set", "evaluation=none", "--set", "pipeline.updates=4")
    assert treadle("train", words_file, *sets, "--view", "none").code == 0
    (folder,) = Path("runs").iterdir()
    said = treadle("prm", folder, "--out", "judge", "--epochs", "20")
    assert said.code == 0
    trained, held, error, written = said.out.splitlines()
    assert trained.startswith("trained ")
    assert "correlation" in held
    assert "of always saying the mean" in error
    assert written.endswith("judge")
    too_many = treadle("prm", folder, "--layers", "99")
    assert too_many.code == 2
    assert too_many.line == "treadle: prm: layers: got 99, expected at most 2, which is what the model has"
    assert {path.name for path in Path("judge").iterdir()} == {"prm.json", "head.safetensors", "model"}


def test_a_folder_that_is_no_run_is_one_line_of_it(treadle):
    said = treadle("prm", "nowhere")
    assert said.code == 2
    assert "there is no such folder" in said.line


def test_a_setting_that_makes_no_sense_is_one_line(treadle):
    said = treadle("prm", "nowhere", "--epochs", "0")
    assert said.code == 2
    assert said.line == "treadle: prm: epochs: got 0, expected >= 1"
