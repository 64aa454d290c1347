"""Clearing away what was left half done: only that goes, and what is appended next finds its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treadle.core.clock import SystemClock
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey, Sink
from treadle.trajectory.store import TrajectoryStore, read_events, read_group, read_groups
from treadle.trajectory.store_remains import Remains


def completion(*ids: int) -> Completion:
    n = len(ids)
    return Completion(
        ids=np.array(ids, np.int32), logprobs=np.zeros(n, np.float32), entropy=np.zeros(n, np.float32),
        versions=((0, n),), kv_version=0, finish=Finish.STOP,
    )


def begun(id: str, sink: Sink | None = None) -> Group:
    return Group(GroupKey(id=id, ticket=0, task="t", family="", split="train", admitted_version=0), sink=sink)


def act(group: Group, index: int, *, ends: bool = True) -> None:
    rollout = group.begin(index).id
    group.sampled(rollout, completion(5, index), after=group.prompt(np.array([1, 2], np.int32)), turn=0)
    if ends:
        group.pay(rollout, "correct", float(index))
        group.end(rollout, OK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rollout 1 of `a` did not end; rollout 2 was appended after it."""
    with TrajectoryStore(tmp_path, clock=SystemClock()) as store:
        for id in ("a", "b", "final-00000"):
            group = begun(id, store)
            for index in range(3):
                act(group, index, ends=(id, index) != ("a", 1))
            store.event("group.ready", {"group": id})
    return tmp_path


def test_only_the_rollout_that_did_not_end_goes(folder):
    before = {group.key.id: group for group in read_groups(folder)}
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        store.clear(Remains(rollouts=(("a", "a.1.0"),)))
    after = {group.key.id: group for group in read_groups(folder)}
    assert sorted(after["a"].rollouts) == ["a.0.0", "a.2.0"]
    kept = {id for id, segment in before["a"].segments.items() if segment.rollout != "a.1.0"}
    assert set(after["a"].segments) == kept
    assert after["a"].records == before["a"].records
    assert after["b"].rollouts == before["b"].rollouts
    assert list(after["b"].segments) == list(before["b"].segments)


def test_the_rollout_is_played_again_under_its_id_and_everything_is_read_back(folder):
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        store.clear(Remains(rollouts=(("a", "a.1.0"),)))
        group = read_group(folder, "a").onward(store)
        act(group, 1)
    found = read_group(folder, "a")
    assert {id: s.ids.tolist() for id, s in found.segments.items()} == {
        id: s.ids.tolist() for id, s in group.segments.items()
    }
    assert sorted(found.rollouts) == ["a.0.0", "a.1.0", "a.2.0"]
    whole = begun("a")
    for index in range(3):
        act(whole, index)
    for mine, meant in zip(Forest.of([found]).segments, Forest.of([whole]).segments, strict=True):
        assert (mine.rollout, mine.ids.tolist()) == (meant.rollout, meant.ids.tolist())


def test_groups_go_whole_and_the_next_one_gets_a_number_of_its_own(folder):
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        store.clear(Remains(groups=("a",)))
        act(begun("c", store), 0)
    assert [group.key.id for group in read_groups(folder)] == ["b", "final-00000", "c"]
    assert [len(group.rollouts) for group in read_groups(folder)] == [3, 3, 1]


def test_a_group_is_called_otherwise_with_all_that_belongs_to_it(folder):
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        store.clear(Remains(renamed={"final-00000": "update-2-00000"}))
        act(begun("final-00000", store), 0)
    found = read_group(folder, "update-2-00000")
    assert sorted(found.rollouts) == [f"update-2-00000.{index}.0" for index in range(3)]
    assert sorted(read_group(folder, "final-00000").rollouts) == ["final-00000.0.0"]


def test_events_go_and_are_told_otherwise(folder):
    first, second, _ = read_events(folder)
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        store.clear(Remains(events=(1,), retold={3: first}))
    assert list(read_events(folder)) == [second, first]


def test_a_forest_does_not_depend_on_who_came_first():
    one, other = begun("a"), begun("a")
    for index in (0, 1, 2):
        act(one, index)
    for index in (2, 0, 1):
        act(other, index)
    rows = [[(s.rollout, s.ids.tolist()) for s in Forest.of([group]).segments] for group in (one, other)]
    assert rows[0] == rows[1]
