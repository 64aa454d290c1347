"""How a benchmark talks to the sides that it compares: one JSON object a line, a question and its answer in turn.

Each side is a process of its own, so that a peer may live in a virtual environment of its own, and only one of them
works at a time: the others wait for their next line. `Side` is the benchmark's end, `Wire` the side's. A side's
standard output is the wire; whatever libraries print there goes to standard error instead.

Who waits for whom: the benchmark for the side that it asked, with a deadline; a side for the benchmark, for ever, and
it ends when the benchmark's end is closed. Nothing but the standard library is used: peers import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLOSE_S = 60.0
"""How long a side may take to end after it was told to."""

Facts = dict[str, Any]


class SideEnded(Exception):
    """A side ended, failed, or did not answer in time."""


class Lines:
    """Lines of a file descriptor, as they come.

    It waits in a selector, as an event loop does: Treadle's heartbeat takes that for waiting, which it is.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def next(self, limit_s: float | None) -> str | None:
        """The next line; None at the end. Raises TimeoutError."""
        until = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._held:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            if not self._selector.select(left):
                continue
            some = os.read(self._descriptor, 1 << 16)
            if not some:
                return None
            self._held += some
        line, _, self._held = self._held.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """Read no more; the descriptor stays its owner's."""
        self._selector.close()


class Wire:
    """A side's end."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lines = Lines(0)

    def hear(self) -> Facts:
        """The next question; `{"do": "quit"}` once the benchmark is gone."""
        line = self._lines.next(None)  # for ever: a side has nothing to do but to be asked
        heard: Facts = {"do": "quit"} if line is None else json.loads(line)
        return heard

    def say(self, **facts: object) -> None:
        """Answer."""
        os.write(self._out, json.dumps(facts).encode() + b"\n")


class Side:
    """The benchmark's end: a process that is asked. A context manager, which ends the process."""

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str], limit_s: float) -> None:
        self.name = name
        self.limit_s = limit_s
        """The longest that one answer may take."""
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno())

    def ask(self, do: str, **facts: object) -> Facts:
        """The answer. Raises SideEnded."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.next(self.limit_s)
        except TimeoutError:
            raise SideEnded(f"{self.name} did not answer {do!r} within {self.limit_s:g} s") from None
        except OSError as error:
            raise SideEnded(f"{self.name} cannot be asked {do!r}: {error}") from error
        if line is None:
            raise SideEnded(f"{self.name} ended at {do!r} with status {self._process.wait(CLOSE_S)}")
        answer: Facts = json.loads(line)
        if "error" in answer:
            raise SideEnded(f"{self.name} failed at {do!r}: {answer['error']}")
        return answer

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines.close()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(CLOSE_S if kind is None else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_S)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would mix two Pythons, and with `changes`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **changes}


def note(text: str) -> None:
    """A line for whoever watches."""
    print(f"# {text}", file=sys.stderr, flush=True)
