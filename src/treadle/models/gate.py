"""The gate: who may touch a policy's tensors, and when.

Engine and learner hold the same tensors. The engine reads them during a forward; the learner changes them in one
short critical section, the optimiser step and the version bump. Readers share the gate, a writer has it alone, and a
waiting writer goes before readers that come later: an engine that steps without pause cannot starve the update.

Who waits for whom: a reader waits while a writer holds the gate or waits for it; a writer waits until the readers and
the writer that were there before are gone. Whoever leaves wakes all waiters, and each looks for itself. A thread that
already holds the gate in either way may not ask again: it would wait for itself, so it is refused at once. Every wait
has a name and a deadline; when it runs out, the error names who waited and who held the gate for how long.
Blocking, for threads: never enter it on an event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treadle.core.errors import DeadlineExceeded

READ_TIMEOUT_S = 120.0
"""How long a forward waits for an update before it gives up, unless told otherwise."""
WRITE_TIMEOUT_S = 120.0
"""How long an update waits for running forwards before it gives up, unless told otherwise."""


class Gate:
    """Writer-preferred reader-writer lock between threads, with names and deadlines."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[int, tuple[str, float]] = {}
        """Thread id -> (name, monotonic seconds of entry)."""
        self._writer: tuple[int, str, float] | None = None
        """(thread id, name, monotonic seconds of entry); None when nobody writes."""
        self._waiting: dict[int, str] = {}
        """Writers that wait: thread id -> name. While any waits, no new reader enters."""

    @contextmanager
    def read(self, name: str, *, timeout_s: float = READ_TIMEOUT_S) -> Iterator[None]:
        """Hold the tensors still. Raises DeadlineExceeded after `timeout_s`, RuntimeError when re-entered."""
        me = threading.get_ident()
        with self._changed:
            self._refuse_reentry(me, name)
            self._wait(name, "read", timeout_s, lambda: self._writer is None and not self._waiting)
            self._readers[me] = (name, time.monotonic())
        try:
            yield
        finally:
            with self._changed:
                del self._readers[me]
                self._changed.notify_all()

    @contextmanager
    def write(self, name: str, *, timeout_s: float = WRITE_TIMEOUT_S) -> Iterator[None]:
        """Have the tensors alone. Raises DeadlineExceeded after `timeout_s`, RuntimeError when re-entered."""
        me = threading.get_ident()
        with self._changed:
            self._refuse_reentry(me, name)
            self._waiting[me] = name
            try:
                self._wait(name, "write", timeout_s, lambda: self._writer is None and not self._readers)
                self._writer = (me, name, time.monotonic())
            finally:
                del self._waiting[me]
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writer = None
                self._changed.notify_all()

    @property
    def writing(self) -> bool:
        """Whether the calling thread holds the gate for writing."""
        writer = self._writer
        return writer is not None and writer[0] == threading.get_ident()

    @property
    def held(self) -> bool:
        """Whether the calling thread holds the gate in either way."""
        return self.writing or threading.get_ident() in self._readers

    def holders(self) -> tuple[str, ...]:
        """Who holds the gate now and for how long, for messages."""
        with self._changed:
            return self._holders()

    def waiting(self) -> tuple[str, ...]:
        """Writers that wait for the gate now."""
        with self._changed:
            return tuple(self._waiting.values())

    def _holders(self) -> tuple[str, ...]:
        now = time.monotonic()
        held = [f"{name} (read, {now - since:.1f} s)" for name, since in self._readers.values()]
        if self._writer is not None:
            _, name, since = self._writer
            held.append(f"{name} (write, {now - since:.1f} s)")
        return tuple(held)

    def _wait(self, name: str, kind: str, timeout_s: float, ready: Callable[[], bool]) -> None:
        if self._changed.wait_for(ready, timeout_s):
            return
        held = ", ".join(self._holders()) or f"nobody, but {', '.join(self._waiting.values())} waits to write"
        raise DeadlineExceeded(f"{name} waited {timeout_s:g} s to {kind} at the policy's gate; held by {held}")

    def _refuse_reentry(self, me: int, name: str) -> None:
        if me in self._readers or (self._writer is not None and self._writer[0] == me):
            raise RuntimeError(f"{name}: this thread already holds the policy's gate ({', '.join(self._holders())})")
