"""Forks in the store, and files from before there were any."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from treadle.core.clock import SystemClock
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore, read_group, read_rollouts

KEY = GroupKey(id="g0", ticket=0, task="t", family="f", split="train", admitted_version=0)


def sampled(*tokens):
    n = len(tokens)
    return Completion(
        ids=np.array(tokens, np.int32), logprobs=np.full(n, -1.0, np.float32), entropy=np.zeros(n, np.float32),
        versions=((0, n),), kv_version=0, finish=Finish.STOP,
    )


def chain(group):
    """One rollout that acted and was answered: its id, and the answer."""
    rollout = group.begin(0).id
    act = group.sampled(rollout, sampled(7, 8), after=group.prompt(np.array([1], np.int32)), turn=0)
    return rollout, group.observed(rollout, np.array([2], np.int32), after=act, turn=0, snapshot="s1")


def forked(group, rollout, at):
    for index, probe in ((1, False), (1 << 40, True)):
        fork = group.fork(rollout, index, at=at, probe=probe).id
        group.sampled(fork, sampled(9), after=at, turn=1)
        group.pay(fork, "score", 1.0)
        group.end(fork, OK)


def opened(path):
    return TrajectoryStore(path, clock=SystemClock())


def test_forks_and_probes_come_back_as_they_were(tmp_path):
    with opened(tmp_path) as store:
        group = Group(KEY, sink=store)
        forked(group, *chain(group))
    found = read_group(tmp_path, "g0")
    assert found.rollouts == group.rollouts
    assert [(r.forked_from, r.probe) for _, r in read_rollouts(tmp_path)] == [
        (None, False), ("g0.0.0", False), ("g0.0.0", True)
    ]
    assert found.probed == group.probed
    assert [s.snapshot for s in found.segments.values()] == [None, None, "s1", None, None]


@pytest.fixture
def older(tmp_path):
    """A run folder as it was before there were forks."""
    with opened(tmp_path) as store:
        group = Group(KEY, sink=store)
        rollout, _ = chain(group)
        group.pay(rollout, "score", 0.5)
        group.end(rollout, OK)
    with sqlite3.connect(tmp_path / "run.db") as db:
        for column in ("forked_from", "forked_at", "probe"):
            db.execute(f"ALTER TABLE rollouts DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    return tmp_path, group


def test_an_older_file_is_read_as_it_is(older):
    path, group = older
    assert read_group(path, "g0").rollouts == group.rollouts
    with sqlite3.connect(path / "run.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()


def test_who_writes_to_an_older_file_brings_it_up_to_date(older):
    path, group = older
    with opened(path) as store:
        held = read_group(path, "g0").onward(store)
        at = next(s for s in held.segments.values() if s.snapshot)
        forked(held, "g0.0.0", at)
    found = read_group(path, "g0")
    assert found.rollouts == held.rollouts
    assert found.rollouts["g0.0.0"] == group.rollouts["g0.0.0"]
    with sqlite3.connect(path / "run.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    db.close()
