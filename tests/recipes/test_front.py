"""Training, evaluating and playing from a script and from a running loop; what a run leaves behind."""

import asyncio
import json
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path

import pytest
from words_recipe import Words, broken, broken_training, recipe, sometimes_broken, words

import treadle
from treadle.recipes.folder import RunFolder
from treadle.trajectory.store import TrajectoryStore, read_meta

FILE = str(Path(__file__).parent / "words_recipe.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, made from a recipe file."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(folder / "cache"))
        return treadle.train(FILE, overrides={"runs": str(folder)}, view="none")


def test_a_script_trains_and_gets_the_result(trained):
    assert trained.reason == "done"
    assert list(trained.evaluations) == ["untouched", "coldstart", "final"]
    assert trained.version == int(trained.checkpoint.name.removeprefix("version-"))
    files = {path.name for path in trained.folder.iterdir()}
    assert {"recipe.toml", "run.db", "events.jsonl", "metrics.jsonl", "report.md", "learning-curve.png"} <= files


def test_a_running_loop_trains_in_a_thread_of_its_own(ears):
    async def cell():
        return treadle.train(recipe(), view="none", listeners=[ears])

    result = asyncio.run(cell())
    assert result.reason == "done"
    assert ears.named("run.done")[0]["version"] == result.version


def test_a_checkpoint_is_evaluated_with_its_version(trained):
    found = treadle.evaluate(trained.folder, tasks=3)
    assert found.overall.total == 3
    assert found.version == trained.version
    by_name = treadle.evaluate(str(trained.folder), checkpoint=trained.checkpoint.name, tasks=3)
    assert by_name.reward_mean == found.reward_mean


def test_the_untouched_model_of_a_recipe_is_evaluated():
    assert treadle.evaluate(words(), tasks=2).version == 0


def test_the_checkpoint_of_a_recipe_object_is_evaluated(trained):
    assert treadle.evaluate(words(), checkpoint=trained.checkpoint, tasks=2).version == trained.version
    assert treadle.evaluate(words(), checkpoint=trained.checkpoint / "model", tasks=2).overall.total == 2


def test_a_task_is_played_and_decoded(trained):
    played = treadle.rollout(trained.folder, task=1)
    (rollout,) = played.group.rollouts.values()
    assert rollout.outcome is not None
    assert played.group.key.task == "heldout-1"
    assert "<|im_start|>user\ngo<|im_end|>" in played.decode(played.group.context_ids(rollout.leaves[-1]).tolist())


def test_equal_seeds_give_equal_evaluations():
    first, second = (treadle.train(words(epochs=0, updates=0), view="none") for _ in range(2))
    assert first.evaluations["untouched"].reward_mean == second.evaluations["untouched"].reward_mean
    assert first.checkpoint is None


def test_a_run_that_only_imitates_is_saved():
    result = treadle.train(words(updates=0), view="none")
    assert result.checkpoint is not None
    assert result.version == 2


def test_an_environment_that_always_raises_stops_the_run_with_that_line(ears):
    with pytest.raises(treadle.EnvError, match="RuntimeError: this world is broken") as error:
        treadle.train(broken(), view="none", listeners=[ears])
    assert "\n" not in str(error.value)
    assert "this world is broken" in ears.named("run.failed")[0]["message"]
    (folder,) = Path("runs").iterdir()
    assert "Ended: EnvError" in (folder / "report.md").read_text()


def test_an_environment_that_always_raises_in_training_stops_the_run():
    with pytest.raises(treadle.EnvError, match=r"3 batches in a row.*this world is broken"):
        treadle.train(broken_training(), view="none")


def test_what_was_trained_before_a_run_failed_is_saved(ears):
    world = Words(fault=lambda split, number: split == "train" and number >= 2)
    with pytest.raises(treadle.EnvError):
        treadle.train(words(world, epochs=0, updates=8), view="none", listeners=[ears])
    version = ears.named("run.failed")[0]["version"]
    assert version >= 1
    assert [e["version"] for e in ears.named("checkpoint.saved")] == [version]


def test_an_environment_that_sometimes_raises_does_not_stop_the_run(ears):
    result = treadle.train(sometimes_broken(), view="none", listeners=[ears])
    assert result.reason == "done"
    assert result.evaluations["final"].unscored == 2
    assert {e["type"] for e in ears.named("rollout.done") if e["status"] == "error"} == {"RuntimeError"}
    assert len(ears.named("update.done")) + len(ears.named("update.skipped")) == 3


def test_a_listener_that_raises_is_left_alone_and_the_run_goes_on(capsys):
    class Bad:
        def emit(self, event):
            raise KeyError("mine")

    assert treadle.train(words(epochs=0, updates=0), view="none", listeners=[Bad()]).reason == "done"
    assert capsys.readouterr().err.count("Bad is told nothing more") == 1


def test_a_run_that_cannot_start_leaves_no_folder():
    with pytest.raises(treadle.ConfigError, match=r"engine.context=2048 contradicts model=tiny"):
        treadle.train(words().changed({"engine.context": 2048}), view="none")
    assert list(Path("runs").iterdir()) == []


def test_a_prompt_longer_than_the_context_is_said_in_one_line():
    with pytest.raises(treadle.EnvError, match=r"its prompt has \d+ tokens, limits.max_context is 16"):
        treadle.train(words().changed({"limits.max_context": 16}), view="none")


def test_a_split_that_ends_before_the_first_task_that_is_asked_for_is_refused_before_anything_starts():
    tasks = treadle.ListTaskset([treadle.Task(id="a", prompt="go")], heldout=[treadle.Task(id="b", prompt="go")])
    made = words(tasks, epochs=0).changed({"validation.split": "train", "validation.first": 1})
    with pytest.raises(treadle.ConfigError, match=r"validation\.first: got 1, expected less than the 1 tasks of"):
        treadle.train(made, view="none")


def test_a_split_without_tasks_is_refused_before_anything_starts():
    tasks = treadle.ListTaskset([treadle.Task(id="a", prompt="go")])
    with pytest.raises(treadle.ConfigError, match=r"evaluation.split: the split 'heldout' holds no task"):
        treadle.train(words(tasks, epochs=0), view="none")
    with pytest.raises(treadle.ConfigError, match=r"evaluation.split: split: got 'test'"):
        treadle.train(words(tasks, epochs=0).changed({"evaluation.split": "test"}), view="none")


def test_a_full_disk_is_noticed_before_anything_starts(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(treadle.StoreError, match=r"MB are free, checkpoints need .* set runs=FOLDER"):
        treadle.train(words(), view="none")
    assert list(Path("runs").iterdir()) == []


def test_a_run_folder_that_cannot_be_made_is_named():
    Path("runs").write_text("in the way")
    with pytest.raises(treadle.StoreError, match=r"run folder runs/words-.* cannot be made: .*; set runs=FOLDER"):
        treadle.train(words(), view="none")


def test_a_report_that_cannot_be_written_does_not_hide_the_result(monkeypatch, capsys):
    def refuse(self, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("treadle.observability.report.Report.write", refuse)
    assert treadle.train(words(epochs=0, updates=0), view="lines").reason == "done"
    assert "report: not written, [Errno 28] No space left on device" in capsys.readouterr().out


def test_a_run_of_a_recipe_object_says_how_to_evaluate_it():
    result = treadle.train(words(updates=0), view="none")
    with pytest.raises(treadle.ConfigError, match=r"trained from a Recipe object.*version-000002"):
        treadle.evaluate(result.folder)


@pytest.mark.parametrize(
    ("run", "checkpoint", "said"),
    [
        ("runs/none", "last", "runs/none: there is no such folder"),
        (".", "last", r"got a folder without run\.db"),
        (FILE, "version-000009", "checkpoint 'version-000009': there is no such folder"),
        ("shel", "last", r"unknown recipe 'shel'; did you mean 'shell'\?"),
    ],
)
def test_what_is_not_a_run_is_named(run, checkpoint, said):
    with pytest.raises(treadle.ConfigError, match=said):
        treadle.evaluate(run, checkpoint=checkpoint)


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(trained):
    with pytest.raises(treadle.ConfigError, match=rf"this run has {trained.checkpoint.name}\)"):
        treadle.evaluate(trained.folder, checkpoint="version-000001")


def test_a_view_that_is_not_there_is_refused_before_a_folder_is_made():
    with pytest.raises(treadle.ConfigError, match="view: got 'loud'"):
        treadle.train(words(), view="loud")
    assert not Path("runs").exists()


def test_the_run_remembers_its_recipe_and_its_changes(trained, model_cache):
    ref = read_meta(RunFolder(trained.folder).database)["recipe_ref"]
    assert ref == FILE
    changed = treadle.train(FILE, overrides={"pipeline.updates": 0, "coldstart": "none", "seed": 7}, view="none")
    from treadle.recipes.front import recipe_of

    again = recipe_of(changed.folder)
    assert (again.seed, again.coldstart, again.pipeline.updates) == (7, None, 0)


def test_events_and_metrics_are_lines_of_strict_json(trained):
    def no_constant(name):
        raise AssertionError(name)

    events = [
        json.loads(line, parse_constant=no_constant)
        for line in (trained.folder / "events.jsonl").read_text().splitlines()
    ]
    assert (events[0]["name"], events[-1]["name"]) == ("run.started", "run.done")
    metrics = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert {"evaluation.done", "coldstart.update"} <= {m["name"] for m in metrics}


def test_the_training_tasks_may_be_a_plain_list(ears):
    train, heldout = (
        [treadle.Task(id=f"{split}{i}", prompt="go", split=split) for i in range(3)] for split in ("train", "heldout")
    )
    listed = treadle.ListTaskset(train, heldout)
    assert treadle.train(words(listed, epochs=0, updates=3), view="none", listeners=[ears]).reason == "done"
    assert {e["task"] for e in ears.named("group.admitted")} == {"train0", "train1", "train2"}
    assert Words().task("train", 0).id == "train-0"


@pytest.mark.parametrize("commits", [0, 3, 12])
def test_a_disk_that_fills_up_under_a_run_ends_it_in_one_line(monkeypatch, commits):
    commit, done = TrajectoryStore._commit, []

    def fails(self, batch):
        done.append(1)
        if len(done) > commits:
            raise sqlite3.OperationalError("database or disk is full")
        commit(self, batch)

    monkeypatch.setattr(TrajectoryStore, "_commit", fails)
    with pytest.raises(treadle.TreadleError, match="database or disk is full") as error:
        treadle.train(words(updates=50), view="none")
    assert "\n" not in str(error.value)
