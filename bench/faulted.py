"""One kind of fault, in a process of its own, so that a run that hangs can be ended from outside.

    python -m bench.faulted KIND FOLDER JOURNAL [--size S]

Every fault is written into JOURNAL before it happens. The last line printed is one JSON object: `wrong`, a list of what
was not as it should be, and `as_reward`, how many failed rollouts the learner was given with a reward.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from bench.fault_judge import Verdict
from bench.fault_lab import Injector, Setting

KINDS = {
    "reset_fails": "fault_worlds", "step_hangs": "fault_worlds", "step_raises": "fault_worlds",
    "grader_crashes": "fault_worlds", "sandbox_killed": "fault_worlds", "engine_raises": "fault_tiny",
    "nan_loss": "fault_tiny", "clock_jumps": "fault_runs", "disk_full_checkpoint": "fault_runs",
    "database_locked": "fault_runs", "sigterm": "fault_runs", "slow_rollout": "fault_slow",
    "output_flood": "fault_worlds",
}
"""Kind to the module of this package that has a function of its name."""


def play(kind: str, folder: Path, journal: Path, *, size: float = 1.0, seed: int = 0) -> tuple[Verdict, Injector]:
    """Run one kind here and now. `folder` must not be there yet."""
    injector = Injector(journal, kind=kind, seed=seed)
    function = cast("Callable[[Setting], Verdict]", vars(importlib.import_module(f"bench.{KINDS[kind]}"))[kind])
    return function(Setting(folder=folder, injector=injector, size=size)), injector


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faulted")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--size", type=float, default=1.0, help="share of the usual length")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    verdict, _ = play(args.kind, args.folder, args.journal, size=args.size, seed=args.seed)
    sys.stdout.write(json.dumps({"wrong": verdict.wrong, "as_reward": verdict.as_reward}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
