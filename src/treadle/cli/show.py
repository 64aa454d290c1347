"""`treadle show RUN [ROLLOUT | GROUP]`: what a run stored."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # looking for help must not load what reads runs
    from treadle.recipes.folder import RunFolder


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("show", help="list a run's rollouts, or print one with token marks")
    command.add_argument("folder", metavar="RUN", type=Path, help="a run folder")
    command.add_argument("rollout", nargs="?", help="id of a rollout, as the list gives it; or of a group: its tree")
    command.add_argument("--tokens", action="store_true", help="a line per token: id, log-prob, entropy, version, mark")
    command.add_argument("--most", type=int, default=40, metavar="N", help="rollouts to list, newest last (default 40)")
    command.add_argument("--split", choices=("train", "heldout"), help="list only rollouts of this split")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List, or print one."""
    from treadle.recipes.folder import RunFolder

    folder = RunFolder.existing(args.folder)
    if args.rollout is None:
        return _list(folder.database, args)
    return _one(folder, args.rollout, tokens=args.tokens)


def _list(database: Path, args: argparse.Namespace) -> int:
    from treadle.observability.facts import printable, taped
    from treadle.trajectory.store import read_events, read_rollouts

    shown: list[str] = []
    for key, rollout in read_rollouts(database):
        if args.split is not None and key.split != args.split:
            continue
        ended = rollout.outcome.status.value if rollout.outcome is not None else "running"
        reward = "-" if rollout.reward is None else f"{rollout.reward:g}"
        ended = f"{ended}, probe" if rollout.probe else ended
        facts = f"{rollout.id:<28} {ended:<10} reward {reward:<6} {key.split:<8} {key.family:<16} {key.task}"
        shown.append(printable(facts))
    for line in shown[-args.most :] if args.most > 0 else shown:
        print(line)
    if len(shown) > args.most > 0:
        print(f"({len(shown) - args.most} more before these; --most N)")
    if tape := taped(read_events(database, prefix="run.")):
        print(f"({tape})")
    return 0


def _one(folder: RunFolder, rollout_id: str, *, tokens: bool) -> int:
    from treadle.cli.paper import rollout_lines, tree_lines
    from treadle.models.source import resolve
    from treadle.rendering.tokens import Tokens
    from treadle.trajectory.store import find_rollout, read_group, read_keys, read_meta

    if rollout_id in {key.id for key in read_keys(folder.database)}:
        print("\n".join(tree_lines(read_group(folder.database, rollout_id))))
        return 0
    group, rollout = find_rollout(folder.database, rollout_id)
    saved = folder.newest_checkpoint
    model = saved / "model" if saved is not None else resolve(read_meta(folder.database).get("model", ""))
    decode = Tokens.load(model).decode
    print("\n".join(rollout_lines(group, rollout, decode, tokens=tokens)))
    return 0
