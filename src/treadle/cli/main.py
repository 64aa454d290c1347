"""The command line: `treadle train|eval|rollout|show|doctor|recipes`.

Each command is a small module with `add(commands)`, which declares its arguments, and `run(args)`, which returns the
exit code; `run` imports what it needs, so that `--help` answers at once. Errors that Treadle raises on purpose end here
as one line on standard error: exit 2 for a configuration or usage fault, 1 for everything else, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from treadle.cli import doctor, evaluate, recipes, rollout, show, train
from treadle.core.errors import ConfigError, TreadleError

COMMANDS = (train, evaluate, rollout, show, doctor, recipes)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="treadle", description="Trains language-model agents by reinforcement learning on what they do."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        return _say(f"treadle: {error}", 2)
    except TreadleError as error:
        return _say(f"treadle: {error}", 1)
    except KeyboardInterrupt:
        return _say("treadle: interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away: not an error of ours
        sys.stderr.close()
        return 0
    return code


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
