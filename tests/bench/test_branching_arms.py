"""The branching experiment: figures come from stored rollouts, and a run is read, gone on with or played."""

import json
from functools import partial

import numpy as np
import pytest
from bench.branching import ALIKE, ARMS, COLD
from bench.branching_record import Played, _seconds, record

from bench import branching
from treadle.core.clock import SystemClock
from treadle.core.config import read_sets
from treadle.core.events import Event
from treadle.core.outcome import CANCELLED, OK
from treadle.recipes.shell import shell
from treadle.testing.forests import Node, action, grow, observation
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.segment import Author
from treadle.trajectory.store import TrajectoryStore


def evaluated(store, label, solved, *, of=4, unscored=0):
    for number in range(of + unscored):
        key = GroupKey(
            id=f"{label}-{number:05d}", ticket=number, task=f"t{number}", family="f", split="heldout",
            admitted_version=0,
        )
        group = Group(key, sink=store)
        rollout = group.begin(0)
        at = group.prompt(np.array([1], dtype=np.int32))
        group.demonstrated(rollout.id, at.ids, after=at, turn=0)
        if number < of:
            group.pay(rollout.id, "correct", float(number < solved))
            group.end(rollout.id, OK)
        else:
            group.end(rollout.id, CANCELLED)
    store.emit(Event(name="evaluation.done", at=0.0, values={"label": label, "seconds_s": 5.0}))


def told(store, name, **values):
    store.emit(Event(name=name, at=0.0, values=values))


@pytest.fixture
def arm(tmp_path):
    """A run of three updates: 4, 3 and 10 sampled tokens, the last with a failed rollout and three looks."""

    def make(name="arm", final=3):
        folder = tmp_path / name
        folder.mkdir()
        with TrajectoryStore(folder / "run.db", clock=SystemClock()) as store:
            tell = partial(told, store)
            evaluated(store, "untouched", 1)
            tell("stage.started", stage="rl")
            lost = Node(name="c", author=Author.POLICY, ids=(1, 2, 3), end=CANCELLED)
            plays = [(action("a", 3), action("b", 1)), (action("a", 3),), (action("a", 4), lost)]
            for ticket, children in enumerate(plays):
                id = f"t{ticket:06d}"
                grow(observation("p", 2, *children), id=id, ticket=ticket, sink=store)
                tell("group.admitted", ticket=ticket, group=id)
                tell("batch.taken", update=ticket + 1, tickets=str(ticket))
                if ticket == 2:
                    tell("group.branched", group=id, ticket=ticket, look_tokens=3)
                tell("update.done", update=ticket + 1, seconds_s=10.0 if ticket != 2 else 15.0)
                if ticket == 1:
                    evaluated(store, "update-2", 2, unscored=1)
            evaluated(store, "final", final)
        return folder

    return make


def test_tokens_count_failed_rollouts_and_looks_and_no_evaluation(arm):
    found = Played.read(arm())
    assert found.tokens == 4 + 3 + 10
    assert [(p.label, p.update, p.tokens) for p in found.points] == [
        ("untouched", 0, 0), ("update-2", 2, 7), ("final", 3, 17),
    ]


def test_seconds_are_those_of_updates_without_the_evaluations_between(arm):
    assert [point.seconds for point in Played.read(arm()).points] == [0.0, 20.0, 30.0]


def test_seconds_of_a_batch_that_trained_nobody_count_and_its_evaluation_does_not():
    told = [
        ("stage.started", {"stage": "rl"}), ("update.done", {"update": 1, "seconds_s": 10.0}),
        ("evaluation.done", {"seconds_s": 5.0}), ("update.skipped", {"update": 2, "seconds_s": 12.0}),
        ("update.done", {"update": 3, "seconds_s": 10.0}),
    ]
    assert _seconds([Event(name=name, at=0.0, values=values) for name, values in told]) == {1: 10.0, 2: 7.0, 3: 10.0}


def test_success_is_counted_from_the_rollouts_and_what_could_not_be_scored_is_not(arm):
    found = Played.read(arm())
    assert [(p.count.solved, p.count.total, p.played) for p in found.points] == [(1, 4, 4), (2, 4, 5), (3, 4, 4)]


def test_arms_are_compared_at_equal_tokens(arm):
    found = record({"grpo": [Played.read(arm("a"))], "tree_pg": [Played.read(arm("b", final=4))]}, budget=16)
    assert (found["seeds"], found["arms"], found["tasks_per_evaluation"], found["budget_spread"]) == (1, 2, 4, 0.0)
    steps = found["by_arm"]["tree_pg"]["at_tokens"]
    assert [(step["tokens"], step["solved"]) for step in steps] == [(0, 1), (4, 1), (8, 2), (12, 2), (16, 4)]
    assert found["by_arm"]["grpo"]["final"]["solved"] == 3
    assert json.dumps(found, allow_nan=False)


def test_a_run_is_read_gone_on_with_or_played_and_other_settings_are_refused(arm, tmp_path, monkeypatch):
    asked = []

    def play(command, **_):
        asked.append(command[6:])
        store_done(tmp_path / "home")
        return type("Done", (), {"returncode": 0})()

    def store_done(home):
        folder = (sorted(home.glob("shell-*")) or [home / "shell-1"])[-1]
        folder.mkdir(exist_ok=True)
        with TrajectoryStore(folder / "run.db", clock=SystemClock()) as store:
            store.emit(Event(name="run.done", at=0.0, values={"reason": "done" if asked[1:] else "interrupted"}))

    monkeypatch.setattr(branching.subprocess, "run", play)
    home = tmp_path / "home"
    with pytest.raises(SystemExit, match="no finished run"):
        branching._folder(home, ["seed=0"], play=False)
    folder = branching._folder(home, ["seed=0"], play=True)
    assert asked[0] == ["shell", "--set", "seed=0", "--set", f"runs={home}"]
    assert branching._folder(home, ["seed=0"], play=True) == folder
    assert asked[1] == ["--resume", str(folder)]
    assert branching._folder(home, ["seed=0"], play=False) == folder
    assert len(asked) == 2
    with pytest.raises(SystemExit, match="other settings"):
        branching._folder(home, ["seed=1"], play=True)


@pytest.mark.parametrize("sets", [COLD, *((*ALIKE, *arm, "pipeline.tokens=9") for arm in ARMS.values())])
def test_the_settings_fit_the_shells_recipe(sets):
    recipe = shell().changed(read_sets(sets))
    assert recipe.world.train_levels == ("hard",)
    assert recipe.coldstart is None or recipe.pipeline.updates == 0
