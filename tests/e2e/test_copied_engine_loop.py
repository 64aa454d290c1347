"""A whole run with an engine in a process of its own: the tiny model in a real shell, weights copied and checked."""

import json

import pytest

from treadle.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("copies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(folder / "cache"))
        sets = {"runs": folder / "runs", "engine.copies": "true", "pipeline.updates": 2, "evaluation.tasks": 4}
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        assert main(["train", "shell-smoke", *words, "--view", "none"]) == 0
        (made,) = (folder / "runs").iterdir()
        yield made


def told(run, name):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["name"] == name]


def test_the_run_goes_its_whole_way(run):
    (done,) = told(run, "run.done")
    assert done["reason"] == "done"
    solved = {event["label"]: event["solved"] for event in told(run, "evaluation.done")}
    assert set(solved) == {"untouched", "coldstart", "final"}
    assert solved["coldstart"] > 0


def test_what_the_copy_sampled_is_what_the_learner_would_have(run):
    updates = told(run, "update.done")
    assert updates != []
    for update in updates:
        assert update["staleness"] == 0
        assert 0 <= update["skew_mean"] <= update["skew_max"] < 1e-3
        assert update["stat.ratio"] == pytest.approx(1.0, abs=1e-3)


def test_the_weights_on_disk_end_with_the_run(run):
    assert not (run / "weights").exists()
    assert (run / "checkpoints").is_dir()
    assert "copies = true" in (run / "recipe.toml").read_text()


def test_its_checkpoint_is_evaluated_by_a_copied_engine_too(run, capsys):
    capsys.readouterr()
    assert main(["eval", str(run), "--tasks", "2"]) == 0
    assert "/2, 95 % " in capsys.readouterr().out
    assert [path for path in run.parent.rglob("weights") if path.is_dir()] == []
