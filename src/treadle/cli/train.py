"""`treadle train RECIPE`, `treadle train --resume RUN`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from treadle.cli.options import add_overrides, overrides


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "train", help="train a recipe and write a run folder",
        description="Train a recipe: evaluate, cold start, reinforcement learning, evaluate again; write a run folder.",
    )
    command.add_argument(
        "recipe", nargs="?", help="a built-in recipe (see `treadle recipes`) or FILE.py[:FUNCTION]; none with --resume"
    )
    command.add_argument(
        "--resume", metavar="RUN", help="go on with the run in this folder, which was stopped or killed"
    )
    add_overrides(command)
    command.add_argument("--seed", type=int, help="root of all random streams; the same as --set seed=N")
    command.add_argument("--dry-run", action="store_true", help="print the resolved recipe as TOML and stop")
    command.add_argument(
        "--view", choices=("auto", "live", "lines", "none"), default="auto",
        help="live redraws the terminal, lines prints one line per event; auto chooses",
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; 0 when done, 130 when interrupted."""
    from treadle.recipes import front
    chosen = overrides(args) | ({} if args.seed is None else {"seed": args.seed})
    if args.dry_run:
        sys.stdout.write(front.resolve(args.recipe, overrides=chosen, resume=args.resume).toml())
        return 0
    result = front.train(args.recipe, overrides=chosen, view=args.view, resume=args.resume)
    if args.view != "none":
        print(f"run folder: {result.folder}")
    return 130 if result.reason == "interrupted" else 0
