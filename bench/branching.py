"""Does branching pay? Arms that differ in rule and branching alone, at one budget of sampled tokens.

For each seed one cold start is trained on the hard shell tasks; every arm begins with its weights and ends with the
update that comes nearest to so many sampled tokens, probes and looks included (`pipeline.tokens`). So arms differ by
about the tokens of one update at most. Held-out hard tasks are played before, along the way and at the end, the same
for all.

Every arm and seed is a run folder of its own. One that is done is read, one that was cut short is gone on with, one
that is missing is played: the command may be killed and given again. The figures are recomputed from the rollouts that
the folders store (`bench/branching_record.py`), whoever played them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.branching_record import Played, record
from bench.machine import machine, steal_s
from treadle.trajectory.store import read_events

LINE = "independent rollouts (grpo) against forks (tree_pg, gigpo) at one token budget (100 minutes; resumable)"
RUNS = Path("runs/bench-branching")
TASKS_FROM = ("world.train_levels=hard", "world.heldout_levels=hard")
COLD = (*TASKS_FROM, "pipeline.updates=0", "pipeline.evaluate_every=0", "pipeline.finish=last", "evaluation=none",
        "validation=none")  # fmt: skip
ALIKE = (
    *TASKS_FROM, "coldstart=none", "validation=none", "pipeline.finish=last", "pipeline.updates=2000",
    "pipeline.groups_per_update=6", "learner.schedule=constant", "learner.lr=4e-5",
    "evaluation.untouched_tasks=none",
)
"""What all arms have in common."""
FORKS = ("pipeline.group_size=4", "branching=fixed", "branching.widths=2,1")
"""Four rollouts from the prompt, each of which is played on twice from its first answer."""
ARMS: dict[str, tuple[str, ...]] = {
    "grpo": ("algorithm.rule=grpo", "pipeline.group_size=8"),
    "tree_pg": (
        "algorithm.rule=tree_pg", "algorithm.aggregation=seq_sum_const", "algorithm.aggregation.constant=192", *FORKS,
    ),
    "gigpo": ("algorithm.rule=gigpo", "world.state_keys=true", *FORKS),
}
"""The constant of tree_pg is 6 groups times the tokens of a typical rollout: the scale of the others' token means."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--tokens", type=int, default=72_000, help="sampled tokens of an arm (default 72000)")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks of an evaluation (default 200)")
    parser.add_argument("--every", type=int, default=17, help="updates between evaluations (default 17)")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"arms to play (default {','.join(ARMS)})")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="K=V", help="for all runs")
    parser.add_argument(
        "--set-cold", dest="cold", action="append", default=[], metavar="K=V", help="for the cold starts alone"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help=f"where the run folders are (default {RUNS})")
    parser.add_argument("--recompute", action="store_true", help="play nothing: only read what is there and done")


def run(args: argparse.Namespace) -> dict[str, object]:
    """All arms of all seeds, then the record."""
    stolen = steal_s()
    chosen = [name.strip() for name in args.arms.split(",")]
    if unknown := [name for name in chosen if name not in ARMS]:
        raise SystemExit(f"--arms: got {', '.join(unknown)}, expected some of {', '.join(ARMS)}")
    played: dict[str, list[Played]] = {name: [] for name in chosen}
    for seed in range(args.seeds):
        home = args.runs / f"seed-{seed}"
        cold = _folder(home / "cold", [f"seed={seed}", *COLD, *args.sets, *args.cold], play=not args.recompute)
        for name in chosen:
            sets = [
                f"seed={seed}", *ALIKE, f"model={_weights(cold)}", f"pipeline.tokens={args.tokens}",
                f"pipeline.evaluate_every={args.every}", f"evaluation.tasks={args.tasks}", *ARMS[name], *args.sets,
            ]
            played[name].append(Played.read(_folder(home / name, sets, play=not args.recompute)))
    found = record(played, budget=args.tokens)
    settings = {name: list(ARMS[name]) for name in chosen}
    return {**found, "settings": settings, "machine": machine(), "steal_s": steal_s() - stolen}


def _folder(home: Path, sets: Sequence[str], *, play: bool) -> Path:
    """The folder of a finished run with these settings: read, gone on with, or played."""
    asked = home / "settings.json"
    if asked.is_file() and json.loads(asked.read_text()) != list(sets):
        raise SystemExit(f"{home} holds a run with other settings: remove it, or give --runs another folder")
    held = sorted(path.parent for path in home.glob("shell-*/run.db"))
    if held and is_done(held[-1]):
        return held[-1]
    if not play:
        raise SystemExit(f"{home}: no finished run, which --recompute does not play")
    home.mkdir(parents=True, exist_ok=True)
    asked.write_text(json.dumps(list(sets)))
    command = [sys.executable, "-m", "treadle.cli.main", "train", "--view", "lines"]
    if held:
        command += ["--resume", str(held[-1])]
    else:
        command += ["shell", *(word for item in [*sets, f"runs={home}"] for word in ("--set", item))]
    print(f"# {home}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    if code := subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(f"{home}: the run ended with exit code {code}; give the same command again to go on with it")
    return sorted(path.parent for path in home.glob("shell-*/run.db"))[-1]


def is_done(folder: Path) -> bool:
    """Whether the run came to its end."""
    return any(event.values.get("reason") == "done" for event in read_events(folder, prefix="run.done"))


def _weights(folder: Path) -> Path:
    return (sorted((folder / "checkpoints").glob("version-*"))[-1] / "model").resolve()
