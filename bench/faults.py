"""Thirteen kinds of faults, more than two hundred of them, into real runs: did each end as the outcome table says?

Every kind runs in a process of its own (`bench.faulted`) with a deadline: one that is not over by then has hung, and is
killed. Inside, an injector writes every fault into a journal before it happens; afterwards that journal is held against
the ledger, run.db and what the learner was given (`bench.fault_judge`). What was not so counts as a wrong outcome.

    injected        lines in the journal
    survived        those after which everything was as it should be
    hung            runs that did not end in time
    wrong_outcome   rollouts, groups, records or figures that were not as they should be
    trained_as_reward   rollouts that failed and were given to the learner with a reward

Then the learning curves of `bench.fault_curves`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.faulted import KINDS
from bench.machine import machine

LINE = "faults of thirteen kinds: injected, survived, hung, wrong outcome; learning with failures masked and with zeros"
DEADLINE_S = 150.0
"""Of one kind; the slowest takes about 30 s on an idle core."""
SHOWN = 5
"""Wrong outcomes that a row names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind."""

    injected: int
    survived: int
    hung: int
    wrong_outcome: int
    trained_as_reward: int
    seconds_s: float
    wrong: list[str] = field(default_factory=list)
    """The first of what was wrong."""


def inject(kind: str, scratch: Path, *, size: float = 1.0, seed: int = 0, deadline_s: float = DEADLINE_S) -> Row:
    """Run one kind in a process of its own."""
    journal, began = scratch / f"{kind}.jsonl", time.monotonic()
    command = [
        sys.executable, "-m", "bench.faulted", kind, str(scratch / kind), str(journal), "--size", str(size),
        "--seed", str(seed),
    ]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            said, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too: the session is its own
            said = ""
            hung = True
        else:
            hung = False
    wrong, as_reward = _verdict(said, status=process.returncode, hung=hung)
    injected = len(journal.read_text(encoding="utf-8").splitlines()) if journal.exists() else 0
    return Row(
        injected=injected, survived=0 if hung else max(0, injected - len(wrong)), hung=int(hung),
        wrong_outcome=len(wrong), trained_as_reward=as_reward, seconds_s=round(time.monotonic() - began, 1),
        wrong=wrong[:SHOWN],
    )


def _verdict(said: str, *, status: int, hung: bool) -> tuple[list[str], int]:
    if hung:
        return [], 0
    if status != 0 or not said:
        return [f"the run ended with exit status {status}"], 0
    found = json.loads(said.splitlines()[-1])
    return list(found["wrong"]), int(found["as_reward"])


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; default all")
    parser.add_argument("--seeds", type=int, default=5, help="of the learning curves (default 5); 0 leaves them out")
    parser.add_argument("--updates", type=int, default=24, help="of a learning curve (default 24)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    began = time.monotonic()
    rows = _rows(args)
    record: dict[str, object] = {
        "kinds": len(rows), "injected": sum(row.injected for row in rows.values()),
        "survived": sum(row.survived for row in rows.values()), "hung": sum(row.hung for row in rows.values()),
        "wrong_outcome": sum(row.wrong_outcome for row in rows.values()),
        "infra_trained_as_reward": sum(row.trained_as_reward for row in rows.values()),
        "per_kind": {kind: asdict(row) for kind, row in rows.items()},
    }
    if args.seeds > 1:
        from bench.fault_curves import curves

        record |= curves(seeds=args.seeds, updates=args.updates, workers=args.workers)
    return {**record, "seconds_s": round(time.monotonic() - began, 1), "machine": machine()}


def _rows(args: argparse.Namespace) -> dict[str, Row]:
    kinds = [kind for kind in args.kinds.split(",") if kind]
    if unknown := set(kinds) - set(KINDS):
        raise SystemExit(f"faults: unknown kinds {', '.join(sorted(unknown))}; there are: {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="treadle-faults-") as folder, ThreadPoolExecutor(args.workers) as pool:
        rows = dict(zip(kinds, pool.map(lambda kind: inject(kind, Path(folder), seed=args.seed), kinds), strict=True))
    for kind, row in rows.items():
        print(f"# {kind}: {asdict(row)}", file=sys.stderr)
    return rows
