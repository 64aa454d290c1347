"""Going on with a run: what is kept, what is not done again, and what is refused."""

import errno
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import save_file
from words_recipe import words

import treadle
from treadle.cli.main import main
from treadle.core.clock import SystemClock
from treadle.learner import checkpoint
from treadle.trajectory.store import TrajectoryStore, read_events, read_rollouts

FILE = str(Path(__file__).parent / "words_recipe.py")


def stopped(interrupts, at="update.done", **overrides):
    """A run of four updates that was asked to stop at an event."""
    result = treadle.train(
        FILE, overrides={"pipeline.updates": 4, **overrides}, view="none", listeners=[interrupts(at, signal.SIGINT)]
    )
    assert result.reason == "interrupted"
    return result.folder


def facts(folder, name):
    return [event.values for event in read_events(folder, prefix=name) if event.name == name]


def test_a_stopped_run_goes_on_to_its_end(interrupts):
    folder = stopped(interrupts)
    result = treadle.train(resume=folder, view="none")
    assert (result.reason, result.folder) == ("done", folder)
    assert list(result.evaluations) == ["untouched", "coldstart", "final"]
    assert [e["update"] for e in facts(folder, "update.done")] == [1, 2, 3, 4]
    assert set(Counter(e["ticket"] for e in facts(folder, "group.admitted")).values()) == {1}
    assert all(rollout.outcome.status != "cancelled" for _, rollout in read_rollouts(folder))


def test_a_stopped_run_ends_like_one_that_was_not(interrupts):
    one = {"engine.slots": 1, "engine.max_batch_tokens": 1}  # every forward has one shape, whatever else waits
    folder = stopped(interrupts, **one)
    whole = treadle.train(FILE, overrides={"pipeline.updates": 4, **one}, view="none")
    again = treadle.train(resume=folder, view="none")
    for name in ("model/model.safetensors", "optimiser.safetensors", "learner.json"):
        assert (again.checkpoint / name).read_bytes() == (whole.checkpoint / name).read_bytes()
    assert again.evaluations["final"].reward_mean == whole.evaluations["final"].reward_mean
    assert again.evaluations["untouched"].reward_mean == whole.evaluations["untouched"].reward_mean


def test_without_a_checkpoint_stored_rollouts_are_trained_again(interrupts, capfd):
    folder = stopped(interrupts)
    for path in (folder / "checkpoints").iterdir():
        path.rename(folder / path.name)
    before = {rollout.id for _, rollout in read_rollouts(folder) if rollout.outcome.status != "cancelled"}
    result = treadle.train(resume=folder, view="none")
    assert result.reason == "done"
    assert "has no checkpoint to go on from" in capfd.readouterr().err
    assert len(facts(folder, "replayed.coldstart.update")) == len(facts(folder, "coldstart.update")) == 2
    assert len(facts(folder, "coldstart.demos")) == 1
    assert [e["update"] for e in facts(folder, "replayed.update.done")] == [1]
    ended = Counter(e["rollout"] for e in facts(folder, "rollout.done"))
    assert {ended[id] for id in before if not id.startswith("demo")} == {1}


def test_the_exports_and_the_report_tell_of_the_whole_run(interrupts):
    folder = stopped(interrupts)
    treadle.train(resume=folder, view="none")
    names = [json.loads(line)["name"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert names.count("run.started") == names.count("run.resumed") == 1
    assert names[-1] == "run.done"
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [m["update"] for m in metrics if m["name"].startswith("update.")] == [1, 2, 3, 4]
    report = (folder / "report.md").read_text()
    assert "| untouched |" in report
    assert "| final |" in report
    assert all(f"| {update} |" in report for update in (1, 2, 3, 4))


def test_show_lists_a_run_that_went_on(interrupts, capsys):
    folder = stopped(interrupts)
    treadle.train(resume=folder, view="none")
    assert main(["show", str(folder), "--most", "0"]) == 0
    assert "t000007.3.0" in capsys.readouterr().out


def test_a_run_that_was_stopped_in_its_cold_start_goes_on(interrupts):
    folder = stopped(interrupts, at="coldstart.update")
    result = treadle.train(resume=folder, view="none")
    assert list(result.evaluations) == ["untouched", "coldstart", "final"]
    assert len(facts(folder, "coldstart.update")) == 2


def test_a_run_that_is_done_has_nothing_left_to_do_unless_it_gets_more_updates():
    folder = treadle.train(FILE, view="none").folder
    with pytest.raises(treadle.ConfigError, match=r"nothing is left to do; set pipeline\.updates to more"):
        treadle.train(resume=folder, view="none")
    result = treadle.train(resume=folder, overrides={"pipeline.updates": 3}, view="none")
    assert list(result.evaluations) == ["untouched", "coldstart", "update-2", "final"]
    assert [e["update"] for e in facts(folder, "update.done")] == [1, 2, 3]
    assert [e["label"] for e in facts(folder, "evaluation.done")] == list(result.evaluations)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"learner.lr": 0.5}, r"learner\.lr=0\.001, not 0\.5: that cannot change"),
        ({"pipeline.updates": 1}, r"pipeline\.updates=4, not 1"),
        ({"seed": 3, "pipeline.lag": 1}, r"pipeline\.lag=0, not 1; seed=0, not 3"),
    ],
)
def test_a_recipe_that_contradicts_the_run_is_refused_by_key(interrupts, overrides, said):
    folder = stopped(interrupts)
    kept = (folder / "recipe.toml").read_bytes(), (folder / "events.jsonl").read_bytes()
    with pytest.raises(treadle.ConfigError, match=said):
        treadle.train(resume=folder, overrides=overrides, view="none")
    assert ((folder / "recipe.toml").read_bytes(), (folder / "events.jsonl").read_bytes()) == kept


def test_a_schedule_is_not_stretched(interrupts):
    folder = stopped(interrupts, **{"learner.schedule": "linear"})
    with pytest.raises(treadle.ConfigError, match=r"pipeline\.updates=9 would stretch learner\.schedule='linear'"):
        treadle.train(resume=folder, overrides={"pipeline.updates": 9}, view="none")


def test_what_does_not_change_how_a_run_comes_out_may_change(interrupts):
    folder = stopped(interrupts)
    harmless = {"pipeline.save_every": 1, "pipeline.keep_checkpoints": 2, "pipeline.stall_s": 99.0}
    assert treadle.train(resume=folder, overrides=harmless, view="none").reason == "done"
    assert len(list((folder / "checkpoints").iterdir())) == 2


def test_a_run_of_a_recipe_object_needs_that_recipe(interrupts):
    made = words(updates=4)
    result = treadle.train(made, view="none", listeners=[interrupts("update.done", signal.SIGINT)])
    with pytest.raises(treadle.ConfigError, match=r"pass that recipe beside resume: .* FILE\.py\[:FUNCTION\] --resume"):
        treadle.train(resume=result.folder, view="none")
    assert treadle.train(made, resume=result.folder, view="none").reason == "done"


def test_a_second_process_on_the_same_run_is_refused(interrupts):
    folder = stopped(interrupts)
    with TrajectoryStore(folder, clock=SystemClock()), pytest.raises(
        treadle.StoreError, match=rf"is being written by another process \(pid {os.getpid()}\)"
    ):
        treadle.train(resume=folder, view="none")
    assert treadle.train(resume=folder, view="none").reason == "done"


def test_a_disk_that_fills_up_during_a_checkpoint_damages_nothing(monkeypatch, interrupts):
    saved = []

    def full(tensors, path):
        saved.append(path)
        if len(saved) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    overrides = {"pipeline.updates": 3, "pipeline.save_every": 1, "runs": "full"}
    with pytest.raises(treadle.StoreError, match="No space left on device"):
        treadle.train(FILE, overrides={**overrides, "coldstart": "none"}, view="none")
    (folder,) = Path("full").iterdir()
    assert next((folder / "checkpoints").iterdir()).name.startswith("version-")
    result = treadle.train(resume=folder, view="none")
    assert result.reason == "done"
    assert [e["update"] for e in facts(folder, "update.done")] == [1, 2, 3]


@pytest.mark.parametrize("damage", ["truncated", "unmarked", "flipped", "empty"])
def test_a_damaged_checkpoint_is_passed_over_in_one_line(interrupts, capfd, damage):
    folder = stopped(interrupts, **{"pipeline.save_every": 1, "pipeline.keep_checkpoints": 3})
    last = max((folder / "checkpoints").iterdir())
    held = [e["update"] for e in facts(folder, "update.done")]
    if damage == "truncated":
        weights = last / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "unmarked":
        (last / "run.json").unlink()
    elif damage == "flipped":
        moments = bytearray((last / "optimiser.safetensors").read_bytes())
        moments[-5] ^= 1
        (last / "optimiser.safetensors").write_bytes(moments)
    else:
        (last / "optimiser.safetensors").write_bytes(b"")
    assert treadle.train(resume=folder, view="none").reason == "done"
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "going back to the one before" in line]
    assert last.name in line
    assert [e["update"] for e in facts(folder, "update.done")] == [1, 2, 3, 4]
    assert facts(folder, "run.resumed")[0]["replayed"] >= 1
    assert held[-1] in [e["update"] for e in facts(folder, "replayed.update.done")]


@pytest.mark.parametrize(
    ("words_", "code", "said"),
    [
        (["train", "--resume", "nowhere"], 2, "there is no such folder"),
        (["train", "--resume", "."], 2, "got a folder without run.db"),
        (["train"], 2, "got no recipe, expected shell, shell-smoke, FILE.py[:FUNCTION], or --resume RUN"),
    ],
)
def test_the_command_line_says_what_is_wrong_in_one_line(capsys, words_, code, said):
    assert main(words_) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_folder_that_cannot_be_written_is_refused(monkeypatch, interrupts):
    folder = stopped(interrupts)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    with pytest.raises(treadle.StoreError, match="cannot be written by this user: change its permissions"):
        treadle.train(resume=folder, view="none")
