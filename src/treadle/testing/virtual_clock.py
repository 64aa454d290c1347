"""The virtual clock: an event loop whose time jumps to the next timer as soon as nothing else can run.

`clock.run(main())` runs a coroutine on a loop of its own. On that loop `asyncio.sleep`, `asyncio.timeout`, `loop.time`
and `clock.sleep` all count virtual seconds, so a test of time-outs, long tails and pacing takes no real time and always
goes the same way. Who wakes whom: the loop asks its selector to wait for the next timer; the selector, instead of
waiting, moves the time there.

Two things do take real time, and the virtual time stands still for them: work in threads (`asyncio.to_thread`,
`run_in_executor`, plain functions of an environment) and open files that the loop watches (subprocesses, sockets). If
neither happens within `grace_s` real seconds, the clock moves on, so that a thread that hangs on purpose meets its
deadline. When there is no timer and nothing to wait for, the program can never go on: that raises RuntimeError at
once instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

WAKE_S = 0.002
"""Real seconds within which the idle thread of an environment starts on a job."""


class VirtualClock:
    """A `core.Clock` over a loop of its own. Not shared between threads."""

    def __init__(self, *, start: float = 0.0, grace_s: float = 5.0) -> None:
        self._now = start
        self.grace_s = grace_s
        """Real seconds to wait for a thread or a file before the time moves on without it."""

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def wall(self) -> float:
        """Virtual seconds since a fixed day, so that records are equal from run to run."""
        return 1_700_000_000.0 + self._now

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time; only on the loop of `run`."""
        await asyncio.sleep(seconds)

    def advance_to(self, moment: float) -> None:
        """Move the time forward; never back."""
        self._now = max(self._now, moment)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end on a fresh loop with this clock."""
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(main)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop that takes its time from a VirtualClock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.in_threads = 0
        super().__init__(_JumpingSelector(clock, self))

    def time(self) -> float:
        return self._clock.now()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self.in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.in_threads -= 1

    def _left_thread(self, _: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


class _JumpingSelector(selectors.BaseSelector):
    """Waits for files only as long as it must, and jumps over the rest of the time."""

    def __init__(self, clock: VirtualClock, loop: _VirtualLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._given_up = 0
        """Calls in threads that took longer than the grace: nobody waits for so many any more."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if found or timeout == 0:
            return found
        if self._working():
            found = self._real.select(self._clock.grace_s)
            if found:
                return found
            self._given_up = max(self._given_up, self._loop.in_threads)
        elif found := self._real.select(0):  # it was done while we looked
            return found
        if timeout is None:
            raise RuntimeError("virtual clock: nothing can run and no timer is set; the program waits for ever")
        self._clock.advance_to(self._clock.now() + timeout)
        return []

    def _working(self) -> bool:
        """Whether something goes on that only real time brings to an end."""
        if self._loop.in_threads > self._given_up or len(self._real.get_map()) > 1:  # 1: the loop's own wake-up pipe
            return True
        threads = [t.ident for t in threading.enumerate() if t.name.startswith("treadle-env")]
        if not threads:
            return False
        time.sleep(WAKE_S)  # a thread that was just given a job must have had the time to take it
        frames = sys._current_frames()
        return any(ident in frames and frames[ident].f_code.co_name != "_serve" for ident in threads if ident)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()
