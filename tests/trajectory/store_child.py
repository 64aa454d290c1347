"""Writes random groups to a store; run as a child process that gets killed, and ends by itself where nobody does.

Usage: python store_child.py RUN_FOLDER SEED
"""

import itertools
import sys
import time
from pathlib import Path

import numpy as np

from treadle.core.clock import SystemClock
from treadle.testing.random_forests import Growth, random_group
from treadle.trajectory.store import TrajectoryStore

LONGEST_S = 60.0


def main(folder: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    growth = Growth(rollouts=6, turns=5, tokens=30, fork=0.4, breaks=0.3, vocabulary=50_000)
    store = TrajectoryStore(Path(folder), clock=SystemClock())
    ends = time.monotonic() + LONGEST_S
    for ticket in itertools.count():
        if time.monotonic() > ends:
            return
        random_group(rng, growth, id=f"g{ticket}", ticket=ticket, sink=store)
        store.event("pipeline.group.ready", {"ticket": ticket})
        if ticket % 5 == 0:
            store.flush()
        if ticket == 2:
            sys.stdout.write("writing\n")
            sys.stdout.flush()


main(sys.argv[1], int(sys.argv[2]))
