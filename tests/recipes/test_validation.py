"""Validation: tasks of their own choose a version, and a run that went on to a worse one ends with the best."""

from pathlib import Path

import pytest
from graded_recipe import recipe
from grades import BOOK
from safetensors.torch import load_file

import treadle
from treadle.learner.prm import PrmFit
from treadle.recipes.chosen import chosen_checkpoint
from treadle.recipes.folder import RunFolder
from treadle.recipes.prm import make_prm
from treadle.trajectory.store import read_events, read_rollouts

FILE = str(Path(__file__).parent / "graded_recipe.py")
KEYS = {
    "pipeline.finish": "best", "pipeline.evaluate_every": 2,
    "validation.split": "heldout", "validation.first": 100, "validation.tasks": 3,
}
FALLING = {"validation_0": 101, "validation_2": 102, "validation_4": 0, "final": 4}
"""The first task of validation is number 100: below 102 there are two of them."""
LABELS = ["untouched", "validation-0", "validation-2", "validation-4", "final"]


def facts(folder, name):
    return [event.values for event in read_events(folder, prefix=name) if event.name == name]


def train(made=None, **overrides):
    keys = {**KEYS, **{key.replace("__", "."): value for key, value in overrides.items()}}
    return treadle.train(made or FILE, overrides=keys, view="none", listeners=[BOOK])


def test_a_run_ends_with_the_version_that_did_best_on_the_tasks_that_choose():
    BOOK.begin(**FALLING)
    result = train()
    assert {label: (found.overall.solved, found.version) for label, found in result.evaluations.items()} == {
        "untouched": (0, 0), "validation-0": (1, 0), "validation-2": (2, 2), "validation-4": (0, 4), "final": (4, 2),
    }
    assert list(result.evaluations) == LABELS
    assert (result.version, result.best.name, result.checkpoint.name) == (2, "version-000002", "version-000004")
    assert facts(result.folder, "run.took_back") == [
        {"version": 2, "from_version": 4, "label": "validation-2", "solved": 2, "total": 3}
    ]
    assert "taking back version 2 (validation-2, 2/3 solved): version 4, the last one, solved no more" in (
        result.folder / "report.md"
    ).read_text()


def test_every_token_of_the_last_evaluation_is_the_best_versions():
    BOOK.begin(**FALLING)
    folder = train().folder
    assert {key.admitted_version for key, _ in read_rollouts(folder) if key.id.startswith("final")} == {2}


def test_a_process_reward_model_stands_on_what_the_run_ended_with():
    BOOK.begin(**FALLING)
    result = train()
    made = make_prm(result.folder, fit=PrmFit(epochs=1))
    held = load_file(made.folder / "model" / "model.safetensors")
    best, last = (load_file(path / "model" / "model.safetensors") for path in (result.best, result.checkpoint))
    assert all(tensor.equal(best[name]) for name, tensor in held.items())
    assert not all(tensor.equal(last[name]) for name, tensor in held.items())


def test_it_may_be_what_was_there_before_the_first_update():
    BOOK.begin(validation_0=103, validation_2=101, final=1)
    result = train()
    assert (result.version, result.best.name) == (0, "version-000000")


def test_the_last_version_stays_where_it_is_the_best():
    BOOK.begin(validation_0=101, validation_4=103)
    result = train()
    assert (result.version, result.evaluations["final"].version) == (4, 4)
    assert facts(result.folder, "run.took_back") == []


def test_no_task_is_held_out_and_chooses():
    BOOK.begin(**FALLING)
    train()
    chosen = {f"heldout-{number}" for number in (100, 101, 102)}
    assert [set(BOOK.plays[label]) for label in LABELS[1:4]] == [chosen] * 3
    assert set(BOOK.plays["final"]) == {f"heldout-{number}" for number in range(4)}


def test_afterwards_the_end_is_meant_unless_another_checkpoint_is_named():
    BOOK.begin(**FALLING)
    folder = RunFolder.existing(train().folder)
    assert chosen_checkpoint(folder, "end", finish="best").name == "version-000002"
    assert chosen_checkpoint(folder, "end").name == "version-000004"
    assert treadle.evaluate(folder.path).version == 2
    assert treadle.evaluate(folder.path, checkpoint="last").version == 4


def test_without_finish_the_best_is_kept_and_the_last_is_what_it_ends_with():
    BOOK.begin(**FALLING)
    result = train(pipeline__finish="last")
    assert (result.version, result.best.name) == (4, "version-000002")


@pytest.mark.parametrize(("key", "value"), [("pipeline.evaluate_every", 0), ("validation", "none")])
def test_a_best_version_needs_tasks_that_choose_it(key, value):
    keys = {**KEYS, key: value} if key in KEYS else {"pipeline.finish": "best", "pipeline.evaluate_every": 2}
    with pytest.raises(treadle.ConfigError, match=r"pipeline\.finish='best' needs pipeline\.evaluate_every and valid"):
        recipe().changed(keys)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("pipeline.finish", "first", r"pipeline\.finish: got 'first' \(str\), expected one of last, best"),
        ("validation.first", -1, r"^validation\.first: got -1, expected >= 0$"),
    ],
)
def test_what_makes_no_sense_is_refused(key, value, said):
    with pytest.raises(treadle.ConfigError, match=said):
        recipe().changed({key: value})
