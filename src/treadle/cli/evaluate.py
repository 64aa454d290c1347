"""`treadle eval RUN`."""

from __future__ import annotations

import argparse
from typing import Any

from treadle.cli.options import add_checkpoint


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "eval", help="evaluate a run's checkpoint, or a recipe's untouched model, on held-out tasks"
    )
    command.add_argument("run_or_recipe", metavar="RUN", help="a run folder, or a recipe")
    add_checkpoint(command)
    command.add_argument("--tasks", type=_positive, help="how many held-out tasks (default: as the recipe says)")
    command.add_argument(
        "--temperature", type=float, help="sampling temperature; 0 is greedy (default: as the recipe says)"
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print the counts."""
    from treadle.recipes import front

    found = front.evaluate(
        args.run_or_recipe, checkpoint=args.checkpoint, tasks=args.tasks, temperature=args.temperature
    )
    for name, count in (("solved", found.overall), *found.levels.items()):
        low, high = count.interval
        print(f"{name:<8} {count.share:.3f}  ({count.solved}/{count.total}, 95 % {low:.3f} to {high:.3f})")
    if found.unscored:
        print(f"not scored: {found.unscored}")
    print(
        f"version {found.version}, temperature {found.temperature:g}, one rollout per task, {found.tokens} tokens, "
        f"{found.seconds:.1f} s"
    )
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number >= 1")
    return int(text)
