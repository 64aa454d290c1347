"""`treadle rollout RUN`: play one task and print its turns."""

from __future__ import annotations

import argparse
from typing import Any

from treadle.cli.options import add_checkpoint


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("rollout", help="play one task and print the turns")
    command.add_argument("run_or_recipe", metavar="RUN", help="a run folder, or a recipe for its untouched model")
    add_checkpoint(command)
    command.add_argument("--task", type=int, default=0, metavar="N", help="number of the task (default 0)")
    command.add_argument("--split", choices=("train", "heldout"), default="heldout")
    command.add_argument("--temperature", type=float, help="sampling temperature; 0 is greedy (default: the recipe's)")
    command.add_argument("--tokens", action="store_true", help="a line per token: id, log-prob, entropy, version, mark")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play and print."""
    from treadle.cli.paper import rollout_lines
    from treadle.recipes import front

    played = front.rollout(
        args.run_or_recipe, task=args.task, split=args.split, temperature=args.temperature, checkpoint=args.checkpoint
    )
    for rollout in played.group.rollouts.values():
        print("\n".join(rollout_lines(played.group, rollout, played.decode, tokens=args.tokens)))
    return 0
