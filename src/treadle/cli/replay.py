"""`treadle replay RUN`."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "replay", help="sample and train a finished run again from its record, and compare every bit",
        description="Sample and train a finished run with engine.deterministic=true again, from its record, and "
        "compare ids, log-probs and weights to the last bit.",
    )
    command.add_argument("folder", metavar="RUN", help="a run folder")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay; 0 when every bit is the same, else 1."""
    from treadle.recipes.replay import replay

    found = replay(args.folder)
    tokens = f"{found.differing} differ, the first in {found.first}" if found.differing else "all the same"
    print(f"tokens   {found.tokens} sampled again, {tokens}")
    print(f"weights  after {found.updates} updates {'the same' if found.same_weights else 'not the same'}")
    return 0 if found.exact else 1
