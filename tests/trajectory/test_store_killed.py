"""kill -9 of a real writer at ten random moments: what is left is a forest without orphans, ids intact."""

from __future__ import annotations

import random
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from treadle.core.clock import SystemClock
from treadle.testing.random_forests import Growth, random_group
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group
from treadle.trajectory.store import TrajectoryStore, read_events, read_groups

CHILD = Path(__file__).with_name("store_child.py")
GROWTH = Growth(rollouts=6, turns=5, tokens=30, fork=0.4, breaks=0.3, vocabulary=50_000)


def killed_run(folder: Path, *, seed: int, after_s: float) -> None:
    """Let a child write, then kill it at a random moment; the wait is for its first words, not for time."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        assert child.stdout.readline() == "writing\n", child.stderr.read()
        select.select([child.stdout], [], [], after_s)  # the child says nothing more: a wait with a deadline
    finally:
        child.kill()
        child.communicate(timeout=30)
    assert child.returncode == -9


def expected(seed: int, count: int) -> list[Group]:
    rng = np.random.default_rng(seed)
    return [random_group(rng, GROWTH, id=f"g{i}", ticket=i) for i in range(count)]


@pytest.mark.parametrize("moment", range(10))
def test_a_killed_writer_leaves_a_prefix_closed_forest(tmp_path: Path, moment: int) -> None:
    killed_run(tmp_path, seed=moment, after_s=random.Random(moment).uniform(0.0, 0.4))
    found = list(read_groups(tmp_path))
    assert len(found) >= 3
    for group, meant in zip(found, expected(moment, len(found)), strict=True):
        assert list(group.segments) == list(meant.segments)[: len(group.segments)]
        for segment in group.segments.values():
            assert {p for p in (segment.parent, segment.after) if p is not None} <= set(group.segments)
            assert segment.ids.tolist() == meant.segments[segment.id].ids.tolist()
        assert all(set(r.leaves) <= set(group.segments) for r in group.rollouts.values())
        assert group.records == meant.records[: len(group.records)]
    for group, meant in zip(found[:-1], expected(moment, len(found) - 1), strict=True):
        assert group.rollouts == meant.rollouts
    assert len(Forest.of(found)) > 0
    assert len(list(read_events(tmp_path))) in (len(found) - 1, len(found))


def test_a_killed_run_is_free_and_takes_more(tmp_path: Path) -> None:
    killed_run(tmp_path, seed=1, after_s=0.05)
    before = len(list(read_groups(tmp_path)))
    with TrajectoryStore(tmp_path, clock=SystemClock()) as store:
        random_group(np.random.default_rng(9), id="again", ticket=before, sink=store)
    groups = list(read_groups(tmp_path))
    assert len(groups) == before + 1
    assert groups[-1].key.id == "again"
