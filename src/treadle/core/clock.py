"""The real clock. The virtual one is in `treadle.testing`."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall and monotonic time of the operating system."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        await asyncio.sleep(seconds)
