"""`treadle prm RUN`: a process reward model from a run's stored rollouts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from treadle.cli.options import add_checkpoint


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "prm", help="train a process reward model on a run's stored rollouts",
        description="Train a head that says what the state behind an action is worth, on the values of a run's stored "
        "nodes. Use it with --set algorithm.prm.folder=FOLDER.",
    )
    command.add_argument("folder", metavar="RUN", help="a run folder")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where to write it (default: RUN/prm)")
    add_checkpoint(command)
    command.add_argument("--layers", type=int, default=0, help="last layers that train too (default 0: the head alone)")
    command.add_argument("--width", type=int, help="units of a hidden layer of the head (default: linear)")
    command.add_argument("--epochs", type=int, default=200, help="passes over the nodes (default 200)")
    command.add_argument("--lr", type=float, default=3e-3, help="learning rate of the head (default 0.003)")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, save, print how good it is."""
    from treadle.learner.prm import PrmFit
    from treadle.recipes.prm import make_prm

    fit = PrmFit(layers=args.layers, width=args.width, epochs=args.epochs, lr=args.lr)
    made = make_prm(args.folder, out=args.out, checkpoint=args.checkpoint, fit=fit)
    told = made.report
    print(f"trained      {told.nodes} nodes of {told.groups} groups, correlation {_said(told.train_correlation)}")
    print(
        f"held out     {told.heldout_nodes} nodes of {told.heldout_groups} groups, correlation "
        f"{_said(told.correlation)}, AUC {_said(told.auc)}"
    )
    print(f"error        {told.error:.4f}, of always saying the mean {told.mean_error:.4f}")
    print(f"written      {made.folder}")
    return 0


def _said(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"
