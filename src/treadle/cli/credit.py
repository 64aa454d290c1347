"""`treadle credit RUN --rules a,b,c`: what other credit rules would have made of a stored run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # looking for help must not load what reads runs
    from treadle.observability.ablation_lines import Decode
    from treadle.recipes.folder import RunFolder


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("credit", help="judge a stored run by other credit rules, without playing it again")
    command.add_argument("folder", metavar="RUN", type=Path, help="a run folder; it may still be written")
    command.add_argument(
        "--rules", default="grpo,rloo,tree_pg", metavar="A,B,C",
        help="credit rules; options behind colons: gigpo:omega=0.5 (default grpo,rloo,tree_pg)",
    )
    command.add_argument("--group", metavar="ID", help="show this group's tree, judged in its batch")
    command.add_argument("--update", type=int, metavar="K", help="only the batch of this update (default: all)")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge and print."""
    import json

    from treadle.observability.ablation import ablate, asked
    from treadle.observability.ablation_figures import record
    from treadle.observability.ablation_lines import ablation_lines
    from treadle.recipes.folder import RunFolder

    folder, rules = RunFolder.existing(args.folder), asked(args.rules)
    found = ablate(folder.database, rules, group=args.group, update=args.update)
    if args.json:
        print(json.dumps(record(found), allow_nan=False))
    else:
        print("\n".join(ablation_lines(found, _decoder(folder))))
    return 0


def _decoder(folder: RunFolder) -> Decode | None:
    """Reads tokens as text; None when the run's model is not here any more."""
    from treadle.core.errors import TreadleError
    from treadle.models.source import resolve
    from treadle.rendering.tokens import Tokens
    from treadle.trajectory.store import read_meta

    saved = folder.newest_checkpoint
    try:
        model = saved / "model" if saved is not None else resolve(read_meta(folder.database).get("model", ""))
        return Tokens.load(model).decode
    except TreadleError:
        return None
