"""What the store costs: microseconds per event and bytes per token, on forests shaped like shell rollouts."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from treadle.core.clock import SystemClock
from treadle.core.events import Event
from treadle.testing.forests import grow
from treadle.testing.random_forests import Growth, random_tree
from treadle.trajectory.group import GroupKey, NoSink, RewardRecord, Rollout
from treadle.trajectory.segment import Segment
from treadle.trajectory.store import TrajectoryStore

LINE = "what the store costs: microseconds per event, bytes per token"
GROWTH = Growth(rollouts=8, turns=4, tokens=60, fork=0.0, breaks=0.0, failure=0.05, vocabulary=49_152)


class Counter(NoSink):
    """Counts what passes."""

    def __init__(self) -> None:
        self.events = 0
        self.tokens = 0

    def segment(self, segment: Segment) -> None:
        self.events += 1
        self.tokens += len(segment)

    def reward(self, record: RewardRecord) -> None:
        self.events += 1

    def rollout(self, rollout: Rollout) -> None:
        self.events += 1

    def group(self, key: GroupKey) -> None:
        self.events += 1


def measure(*, groups: int = 200, repeats: int = 3) -> dict[str, float]:
    """Median over `repeats`. us_per_event: appending until committed, less what growing the groups costs by itself."""
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, GROWTH) for _ in range(groups)]
    counter = Counter()
    begun = time.perf_counter()
    for i, tree in enumerate(trees):
        grow(tree, id=f"g{i}", ticket=i, sink=counter)
    growing = time.perf_counter() - begun
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            with TrajectoryStore(Path(folder), clock=SystemClock()) as store:
                for i, tree in enumerate(trees):
                    grow(tree, id=f"g{i}", ticket=i, sink=store)
                    store.emit(Event(name="group.ready", at=float(i), values={"group": f"g{i}", "tokens": 100}))
                store.flush()
            spent = time.perf_counter() - begun - growing
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
        runs.append((1e6 * spent / (counter.events + groups), size / counter.tokens))
    return {
        "us_per_event": statistics.median(us for us, _ in runs),
        "bytes_per_token": statistics.median(size for _, size in runs),
        "events": counter.events + groups,
        "tokens": counter.tokens,
    }


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--groups", type=int, default=200, help="how many groups of 8 rollouts (default 200)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    return dict(measure(groups=args.groups))
