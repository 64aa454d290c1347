"""Scans over time: segments per second on one core, on a wide forest and on one of long chains.

Wide is what training makes: groups of rollouts that fork, seven turns deep. Long is what it seldom makes: a few
rollouts with thousands of turns. What a scan needs of the forest and keeps (`children`, `leaves`, plain numbers) is
there before the clock starts, as a rule scans one forest several times. The figure per scan is the slower shape's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from treadle.core.outcome import OK
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import GroupKey, Rollout
from treadle.trajectory.scans import Index
from treadle.trajectory.segment import Author, Segment

LINE = "scans of a forest: segments per second and core, wide trees and long chains"
TURNS, WIDTH, FORKS = 7, 4, 2


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--segments", type=int, default=500_000, help="rows of each forest, about (default 500000)")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts (default 3)")


def run(args: argparse.Namespace) -> dict[str, object]:
    shapes = {"wide": forest_of(wide(args.segments)), "long": forest_of(long(args.segments))}
    rates = {name: _rates(forest, args.repeats) for name, forest in shapes.items()}
    return {
        "segments": {name: len(forest) for name, forest in shapes.items()},
        "rollouts": {name: len(forest.rollouts) for name, forest in shapes.items()},
        "segments_per_s": {scan: min(rate[scan] for rate in rates.values()) for scan in rates["wide"]},
        "by_shape": rates,
    }


def wide(segments: int) -> tuple[Index, Index]:
    """Predecessor and group of each row: prompts with WIDTH rollouts that fork in FORKS at two of TURNS turns."""
    one: list[int] = [-1]
    level = [0] * WIDTH
    for turn in range(TURNS):
        level = [at for at in level for _ in range(FORKS if turn in (1, 3) else 1)]
        for _ in range(2):  # an action and the world's answer
            below = range(len(one), len(one) + len(level))
            one += level
            level = list(below)
    groups = max(segments // len(one), 1)
    shape = np.array(one, dtype=np.int64)
    first = np.arange(groups, dtype=np.int64)[:, None] * len(one)
    after = np.where(shape < 0, -1, shape + first).ravel()
    return after, np.repeat(np.arange(groups, dtype=np.int64), len(one))


def long(segments: int, chains: int = 8) -> tuple[Index, Index]:
    """One group whose `chains` rollouts are as long as it takes."""
    rows = max(segments // chains, 2)
    after = np.arange(rows * chains, dtype=np.int64)  # row 0 is the prompt, then chain after chain
    after = np.concatenate([[-1], np.where(after % rows == 0, 0, after)])
    return after, np.zeros(len(after), dtype=np.int64)


def forest_of(tree: tuple[Index, Index]) -> Forest:
    """A forest with these links: actions and observations in turns, a reward now and then. One segment is all rows'."""
    after, group = tree
    n, rng = len(after), np.random.default_rng(0)
    depth = np.zeros(n, dtype=np.int64)
    for row, before in enumerate(after.tolist()):
        depth[row] = depth[before] + 1 if before >= 0 else 0
    action = depth % 2 == 1
    ends = np.flatnonzero(~np.isin(np.arange(n), after))
    segment = Segment(
        id="s", group="g", rollout=None, author=Author.ENV, ids=np.zeros(1, np.int32), parent=None, after=None
    )
    rollout = Rollout(id="r", group="g", index=0, leaves=("s",), outcome=OK, reward=0.0)
    key = GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0)
    return Forest(
        segments=(segment,) * n, rollouts=(rollout,) * len(ends), parent=after, after=after, group=group,
        length=np.ones(n, dtype=np.int64), action=action, policy=action,
        reward=np.where(action & (rng.random(n) < 0.2), rng.normal(size=n), 0.0), turn=depth // 2, rollout_leaf=ends,
        keys=(key,) * (int(group[-1]) + 1), probed=np.full(n, np.nan),
    )


def _rates(forest: Forest, repeats: int) -> dict[str, float]:
    x, per_rollout = np.random.default_rng(1).normal(size=len(forest)), forest.returns
    forest.child_mean(per_rollout)
    scans: dict[str, Callable[[], object]] = {
        "up": lambda: forest.up(x), "down": lambda: forest.down(x),
        "child_mean": lambda: forest.child_mean(per_rollout), "descent": lambda: _descent(forest),
        "togo": lambda: forest.togo(0.95),
    }
    return {name: len(forest) / min(_seconds(scan) for _ in range(repeats)) for name, scan in scans.items()}


def _descent(forest: Forest) -> object:
    forest.__dict__.pop("descent", None)  # it is kept once it is known
    return forest.descent


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
