"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_overrides(command: argparse.ArgumentParser) -> None:
    """`--set KEY=VALUE` and `--with FILE.toml`."""
    command.add_argument(
        "--set", dest="sets", metavar="KEY=VALUE", action="append", default=[],
        help="set one key of the recipe, such as learner.lr=3e-5; may be repeated",
    )
    command.add_argument(
        "--with", dest="files", metavar="FILE.toml", action="append", type=Path, default=[],
        help="set the keys of a TOML file; --set wins over it",
    )


def overrides(args: argparse.Namespace) -> dict[str, object]:
    """What the two options say together."""
    from treadle.core.config import read_sets, read_toml

    merged: dict[str, object] = {}
    for file in args.files:
        merged |= flat(read_toml(file))
    return merged | read_sets(args.sets)


def flat(nested: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as dotted keys, so that a later source replaces single keys and not whole tables."""
    out: dict[str, object] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def add_checkpoint(command: argparse.ArgumentParser) -> None:
    """`--checkpoint`."""
    command.add_argument(
        "--checkpoint", default="end", metavar="WHICH",
        help="weights to use: end (default: what the run ended with), best, last, a version of the run, or a folder",
    )
