"""`treadle recipes`."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("recipes", help="list the built-in recipes")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One line per recipe."""
    from treadle.recipes.catalog import BUILT_IN

    for name, line in BUILT_IN.items():
        print(f"{name:<12} {line}")
    return 0
