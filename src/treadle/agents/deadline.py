"""A deadline with a name: no wait goes on for ever, and one that runs out says what waited for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from treadle.core.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(what: str, seconds: float) -> AsyncIterator[None]:
    """Give the body so many seconds. Raises DeadlineExceeded naming `what`; other TimeoutErrors pass through."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"{what}: not finished after {seconds:g} s") from None
