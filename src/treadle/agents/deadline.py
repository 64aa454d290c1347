"""A deadline with a name: no wait goes on for ever, and one that runs out says what waited for what."""

from __future__ import annotations

import asyncio
from types import TracebackType

from treadle.core.errors import DeadlineExceeded


def deadline(what: str, seconds: float) -> Deadline:
    """Give the body so many seconds. Raises DeadlineExceeded naming `what`; other TimeoutErrors pass through."""
    return Deadline(what, seconds)


class Deadline:
    """Entered once, around one body. Every turn has one, so it is no generator."""

    __slots__ = ("_limit", "_seconds", "_what")

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._limit = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._exceeded from None
        if isinstance(error, TimeoutError) and self._limit.expired():  # the body made its own of being cancelled
            raise self._exceeded from None

    @property
    def _exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._what}: not finished after {self._seconds:g} s")
