"""A deadline with a name: no wait goes on for ever, and one that runs out says what waited for what."""

from __future__ import annotations

import asyncio
from types import TracebackType

from treadle.core.errors import DeadlineExceeded
from treadle.core.timers import Timer, after


def deadline(what: str, seconds: float) -> Deadline:
    """Give the body so many seconds. Raises DeadlineExceeded naming `what`; other TimeoutErrors pass through."""
    return Deadline(what, seconds)


class Deadline:
    """Entered once, around one body. `asyncio.timeout` for every turn: one object, and its timer is a cheap one.

    As there, running out cancels the task, and a cancellation that came from elsewhere passes on.
    """

    __slots__ = ("_cancelling", "_late", "_seconds", "_task", "_timer", "_what")

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._late = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(f"{self._what}: a deadline needs a task")
        self._task, self._cancelling = task, task.cancelling()
        self._timer: Timer = after(self._seconds, self._expire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if not self._late:
            return
        alone = self._task.uncancel() <= self._cancelling
        # A TimeoutError is one that the body made of being cancelled.
        if isinstance(error, TimeoutError) or (alone and isinstance(error, asyncio.CancelledError)):
            raise DeadlineExceeded(f"{self._what}: not finished after {self._seconds:g} s") from None

    def _expire(self) -> None:
        self._late = True
        self._task.cancel()
