"""Evaluations beside training, and which checkpoint they keep: in a run, after a stop, in what is chosen afterwards."""

import signal
from collections import Counter
from pathlib import Path

import pytest
from graded_recipe import recipe
from grades import BOOK
from words_recipe import words

import treadle
from treadle.recipes.chosen import chosen_checkpoint
from treadle.recipes.folder import RunFolder
from treadle.trajectory.store import read_events, read_rollouts

FILE = str(Path(__file__).parent / "graded_recipe.py")
RISING = {"update_1": 1, "update_2": 3, "update_3": 3, "final": 2}
LABELS = ["untouched", "update-1", "update-2", "update-3", "final"]


def facts(folder, name):
    return [event.values for event in read_events(folder, prefix=name) if event.name == name]


def held(folder):
    return sorted(int(path.name.removeprefix("version-")) for path in (folder / "checkpoints").glob("version-*"))


class Stops:
    """Asks the run to stop at the first event that `wanted` takes."""

    def __init__(self, wanted):
        self.wanted = wanted

    def emit(self, event):
        if self.wanted is not None and self.wanted(event):
            self.wanted = None
            signal.raise_signal(signal.SIGTERM)


def train(made=None, *, stop=None, resume=None, **overrides):
    keys = {f"pipeline.{key}": value for key, value in overrides.items()}
    return treadle.train(made or FILE, overrides=keys, resume=resume, view="none", listeners=[BOOK, Stops(stop)])


def test_the_best_checkpoint_stays_beside_the_last():
    BOOK.begin(**RISING)
    result = train()
    assert list(result.evaluations) == LABELS
    assert [e.overall.solved for e in result.evaluations.values()] == [0, 1, 3, 3, 2]
    assert held(result.folder) == [2, 4]
    assert (result.best.name, result.checkpoint.name) == ("version-000002", "version-000004")
    told = [(e["label"], e["version"], e["solved"]) for e in facts(result.folder, "checkpoint.best")]
    assert told == [("update-1", 1, 1), ("update-2", 2, 3)]
    assert "Best: version 2 at update 2 (`update-2`, 3/4); its checkpoint is kept." in (
        result.folder / "report.md"
    ).read_text()


def test_the_last_may_be_the_best_and_then_it_is_alone():
    BOOK.begin(update_1=1, update_3=2, final=4)
    result = train()
    assert held(result.folder) == [4]
    assert result.best == result.checkpoint


def test_no_update_begins_while_the_policy_is_evaluated():
    BOOK.begin(**RISING)
    folder = train(lag=1).folder
    names = [(e.name, e.values.get("label")) for e in read_events(folder)]
    for label in LABELS[1:]:
        during = names[names.index(("stage.started", label)) : names.index(("evaluation.done", label))]
        assert {name for name, _ in during} & {"update.started", "update.done", "batch.taken"} == set()
    seen = {key.admitted_version for key, _ in read_rollouts(folder) if key.id.startswith("update-2")}
    assert seen == {2}


def test_without_evaluations_beside_training_only_the_newest_stay():
    BOOK.begin(coldstart=4, final=1)
    result = train(evaluate_every=0, save_every=1)
    assert held(result.folder) == [4]
    assert result.best is None
    assert facts(result.folder, "checkpoint.best") == []


def test_a_run_that_was_stopped_in_an_evaluation_finishes_it_before_the_next_update():
    BOOK.begin(**RISING)

    def second(event):
        return event.name == "evaluation.progress" and event.values["label"] == "update-2" and event.values["done"] == 2

    made = recipe().changed({"evaluation.at_once": 1})
    folder = train(made, stop=second).folder
    assert [e["label"] for e in facts(folder, "evaluation.done")] == LABELS[:2]
    result = train(made, resume=folder)
    assert list(result.evaluations) == LABELS
    assert BOOK.plays["update-2"] == Counter({f"heldout-{i}": 1 for i in range(4)})
    ended = Counter(e["rollout"] for e in facts(folder, "rollout.done"))
    assert {ended[f"update-2-{i:05d}.0.0"] for i in range(4)} == {1}
    order = [e.name for e in read_events(folder) if e.name in ("evaluation.done", "update.done")]
    assert order == ["evaluation.done", *["update.done", "evaluation.done"] * 4]
    assert held(folder) == [2, 4]


def test_a_run_that_goes_on_knows_its_best():
    BOOK.begin(update_1=3, update_2=1, update_3=3, final=2)
    folder = train(stop=lambda e: e.name == "update.done" and e.values["update"] == 3).folder
    assert held(folder) == [1, 3]
    result = train(resume=folder)
    assert held(folder) == [1, 4]
    assert result.best.name == "version-000001"
    assert [e["version"] for e in facts(folder, "checkpoint.best")] == [1]


def test_a_best_whose_checkpoint_was_not_written_is_written_when_its_version_is_made_again():
    BOOK.begin(**RISING)
    folder = train(stop=lambda e: e.name == "update.done" and e.values["update"] == 3).folder
    for path in (folder / "checkpoints").iterdir():
        path.rename(folder / path.name)  # as if the machine had died before any of them
    again = train(resume=folder)
    assert held(folder) == [2, 4]
    assert [e["label"] for e in facts(folder, "evaluation.done")] == LABELS
    weights = "model/model.safetensors"
    assert (again.best / weights).read_bytes() == (folder / "version-000002" / weights).read_bytes()


def test_a_run_that_is_made_longer_keeps_the_best_of_its_first_end():
    BOOK.begin(final=4)
    folder = train().folder
    BOOK.begin(final=3)
    result = train(resume=folder, updates=5)
    assert held(folder) == [4, 5]
    assert result.best.name == "version-000004"
    assert [e["label"] for e in facts(folder, "checkpoint.best")][-1] == "update-4"


def test_a_checkpoint_is_chosen_by_what_it_is():
    BOOK.begin(**RISING)
    result = train()
    folder = RunFolder(result.folder)
    named = {"best": 2, "last": 4, "2": 2, "version-2": 2, "version-000004": 4}
    assert {name: int(chosen_checkpoint(folder, name).name[-6:]) for name in named} == named
    assert chosen_checkpoint(folder, result.best / "model") == result.best / "model"
    found = treadle.evaluate(result.folder, checkpoint="best", tasks=3)
    assert (found.version, found.overall.total, found.temperature) == (2, 3, 1.0)
    assert treadle.evaluate(result.folder, checkpoint="4", tasks=2, temperature=0.0).temperature == 0.0


@pytest.mark.parametrize(
    "name", ["1", "version-9", "none", "", "x" * 5000], ids=["number", "version", "word", "empty", "long"]
)
def test_a_checkpoint_that_is_not_there_is_answered_with_what_there_is(name):
    folder = RunFolder(Path("there"))
    for version in (2, 4):
        folder.version(version).mkdir(parents=True)
    with pytest.raises(treadle.ConfigError) as error:
        chosen_checkpoint(folder, name)
    assert str(error.value) == (
        f"checkpoint {name!r}: there is no such folder (this run has version-000002, version-000004); expected end, "
        "best, last, a version or a folder"
    )


def test_a_best_that_cannot_be_had_says_why():
    BOOK.begin(final=1)
    bare = treadle.train(words(epochs=0, updates=0), view="none").folder
    with pytest.raises(treadle.ConfigError, match=r"'best': .* has no evaluation of a trained version yet"):
        chosen_checkpoint(RunFolder(bare), "best")
    with pytest.raises(treadle.ConfigError, match=r"'last': .* has none yet; go on with `treadle train --resume"):
        chosen_checkpoint(RunFolder(bare), "last")
    result = train()
    result.best.rename(result.folder / "elsewhere")
    with pytest.raises(treadle.ConfigError, match=r"version 4 \(evaluation final, solved 1/4\), whose checkpoint is"):
        chosen_checkpoint(RunFolder(result.folder), "best")


def test_evaluations_beside_training_need_an_evaluation():
    with pytest.raises(treadle.ConfigError, match=r"pipeline\.evaluate_every=1 contradicts evaluation=None"):
        recipe().changed({"evaluation": "none"})
