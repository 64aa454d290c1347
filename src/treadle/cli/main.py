"""The command line: `treadle train|eval|rollout|replay|show|credit|prm|simulate|doctor|recipes`.

Each command is a small module with `add(commands)`, which declares its arguments, and `run(args)`, which returns the
exit code; `run` imports what it needs, so that `--help` answers at once. Errors that Treadle raises on purpose end here
as one line on standard error: exit 2 for a configuration or usage fault, 1 for everything else, 130 when interrupted.

While a command runs, an interrupt that nobody else handles ends the process at once. A run handles the first one
itself (it saves and stops), so that this is the second; threads that still compute are not waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO

from treadle.cli import credit, doctor, evaluate, prm, recipes, replay, rollout, show, simulate, train
from treadle.core.errors import ConfigError, DeadlineExceeded, TreadleError

COMMANDS = (train, evaluate, rollout, replay, show, credit, prm, simulate, doctor, recipes)
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk says that takes nothing more, where no room has said it better."""
SHOW_CURSOR = "\x1b[?25h"


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
        with _ended_at_once():
            code: int = args.run(args)
            sys.stdout.flush()
    except ConfigError as error:
        return _say(error, 2)
    except DeadlineExceeded as error:
        code = _say(error, 1)
        if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            os._exit(code)  # the update that hangs would hold the process for ever
        return code
    except TreadleError as error:
        return _say(error, 1)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output went away: not an error of ours
        _discard(sys.stdout)
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        _discard(sys.stdout)
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"the disk refuses to be written: {error.strerror}{where}; free some space", 1)
    return code


def _say(what: object, code: int) -> int:
    print("treadle:", " ".join(str(what).split("\n")), file=sys.stderr)
    return code


@contextlib.contextmanager
def _ended_at_once() -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM end the process. Only a main thread hears signals; ignored ones stay so."""
    main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main_thread else ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    """Leave, with what was printed on its way and the terminal's cursor shown. A live view may hold `sys.stdout`."""
    for stream, word in ((sys.__stdout__, SHOW_CURSOR), (sys.__stderr__, "treadle: interrupted\n")):
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it may be closed, or be written to just now
            if stream is not None:
                stream.flush()
                if stream is sys.__stderr__ or stream.isatty():
                    os.write(stream.fileno(), word.encode())
    os._exit(INTERRUPTED)


def _discard(stream: IO[str]) -> None:
    """Let the interpreter's last flush of a broken stream go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
