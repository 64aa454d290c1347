"""A leash: one attempt while it is played, as whoever watches over it sees it.

The player says what the attempt waits for and when it has made a segment; the watchdog reads since when it has made
none, and may give it up. That is no cancellation: the attempt ends with the outcome that it is given, and is then
played again or made up for by its siblings like any other failure.

Who waits for whom: `hold` for the attempt, whose calls have deadlines of their own; `cut` ends that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from treadle.core.outcome import Outcome
from treadle.core.ports import Clock

Ended = tuple[Outcome, bool]
"""How an attempt ended, and whether it was scored."""


@dataclass(slots=True, eq=False, kw_only=True)
class Leash:
    """Of one attempt. Owned by the event loop that plays it."""

    clock: Clock
    since: float
    """Clock time of its last segment; of its start before the first."""
    quiet_since: float
    """The same for all attempts of its member, those that were given up included."""
    made: bool = False
    """Whether this attempt has made one."""
    waits_for: str = "environment"
    """`engine`, `environment` or `grader`."""
    outcome: Outcome | None = None
    """How it was given up; None while it was not."""
    _limit: asyncio.Timeout | None = field(default=None, init=False)

    @classmethod
    def begin(cls, clock: Clock, *, after: Leash | None = None) -> Leash:
        """Of an attempt that begins now, `after` another one of the same member."""
        now = clock.now()
        quiet = after.quiet_since if after is not None and after.outcome is not None else now
        return cls(clock=clock, since=now, quiet_since=quiet)

    def beat(self) -> None:
        """It made a segment."""
        self.made = True
        self.since = self.quiet_since = self.clock.now()

    def cut(self, outcome: Outcome) -> bool:
        """Give the attempt up, so that it ends as `outcome`. False when it was given up before, or is over."""
        if self._limit is None or self.outcome is not None:
            return False
        self.outcome = outcome
        self._limit.reschedule(asyncio.get_running_loop().time())
        return True

    async def hold(self, work: Awaitable[Ended]) -> Ended:
        """What `work` comes to; when it is given up before, what `cut` was told, and it was not scored."""
        try:
            async with asyncio.timeout(None) as self._limit:
                ended = await work
        except TimeoutError:
            if self.outcome is None:
                raise
            ended = self.outcome, False
        finally:
            self._limit = None
        return ended
