"""Timers that hardly ever go off: every turn has deadlines, and nearly all of them are taken back.

A timer of the event loop is an object in a heap, which stays there for some time after it was cancelled. Here a timer
is an entry of a dict, and one timer of the loop stands for all entries: it is set to the earliest of them, and looks
through all when it goes off. It may go off for an entry that was taken back meanwhile; then it is set anew. So to begin
and to take back cost the same however many wait, and a look through all comes about once per length of a deadline.

Who waits for whom: nobody here; the loop calls what is due.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from time import get_clock_info

Call = Callable[[], None]
RESOLUTION = get_clock_info("monotonic").resolution
"""Seconds by which a loop's timer may go off early."""


def after(seconds: float, call: Call) -> Timer:
    """Call this on the running loop after so many seconds, unless `Timer.cancel` is called before. Must not raise."""
    loop = asyncio.get_running_loop()
    book = _HERE.book
    if book is None or book.loop is not loop:
        book = _HERE.book = _Book(loop)
    timer = Timer(book, loop.time() + seconds, call)
    book.waiting[timer] = None
    if timer.at < book.due:
        book.wake(timer.at)
    return timer


class Timer:
    """One that waits. Made by `after`."""

    __slots__ = ("_book", "at", "call")

    def __init__(self, book: _Book, at: float, call: Call) -> None:
        self._book = book
        self.at = at
        """When it is due, in the loop's time."""
        self.call: Call | None = call
        """None once it was taken back."""

    def cancel(self) -> None:
        """Take it back. Idempotent."""
        self.call = None
        book = self._book
        if book.waiting.pop(self, book) is None and not book.waiting:  # it was the last
            book.rest()


class _Book:
    """The timers of one loop."""

    __slots__ = ("_handle", "due", "loop", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: dict[Timer, _Book | None] = {}
        self.due = math.inf
        """When the loop calls."""
        self._handle: asyncio.TimerHandle | None = None

    def wake(self, at: float) -> None:
        """Have the loop call then."""
        self.rest()
        self.due, self._handle = at, self.loop.call_at(at, self._ring)

    def rest(self) -> None:
        """Have the loop not call."""
        if self._handle is not None:
            self._handle.cancel()
        self.due, self._handle = math.inf, None

    def _ring(self) -> None:
        now = self.loop.time() + RESOLUTION
        due = sorted((timer for timer in self.waiting if timer.at <= now), key=lambda timer: timer.at)
        for timer in due:
            del self.waiting[timer]
        self.rest()
        if self.waiting:
            self.wake(min(timer.at for timer in self.waiting))
        for timer in due:
            if timer.call is not None:  # one before it may have taken it back
                timer.call()


class _Here(threading.local):
    """Of one thread: a loop stays in its thread."""

    book: _Book | None = None


_HERE = _Here()
