"""Calling code that a user wrote, on time and without stopping the event loop.

A coroutine function runs as a task on the loop. A plain function runs in a thread: normally the one thread that its
`Caller` owns (an environment's objects never change threads), or a thread of its own when calls may overlap. The
caller waits until the limit, a timer of the event loop. Then the call is cancelled: a coroutine that obeys within the
grace time has *stopped*; one that swallows its cancellation is closed by force, and a thread cannot be stopped at all.
Both raise `Overrun(stopped=False)`: whatever the call touches is dirty from then on.

Threads are daemons, so that one that hangs never keeps the interpreter from leaving. When the awaiting task itself is
cancelled, the user's call is cancelled the same way and the cancellation passes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from treadle.core.errors import EnvError, one_line
from treadle.core.timers import after

GRACE_S = 0.5
"""How long a cancelled coroutine may take to end, in real time."""

Job = Callable[[], None]
_ABANDONED: set[asyncio.Task[Any]] = set()
"""Tasks that refused to end. Held, because a coroutine that swallows everything also complains when it is freed."""


class Overrun(Exception):
    """A call that passed its limit. What that means is for the host to say."""

    def __init__(self, *, stopped: bool) -> None:
        super().__init__("stopped" if stopped else "could not be stopped")
        self.stopped = stopped


class Caller:
    """Calls one environment's methods. Copies of it start with a thread of their own."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] | None = None
        self.stuck = False
        """True once a call could not be stopped; later plain functions get threads of their own."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Caller:
        return Caller()

    async def call(
        self, function: Callable[..., Any], *args: Any, limit_s: float, alone: bool = False, **keywords: Any
    ) -> Any:
        """The value of `function(*args, **keywords)`. `alone` gives a plain function its own thread.

        Raises Overrun when the limit passed, and whatever the function raises.
        """
        try:
            if inspect.iscoroutinefunction(function):
                value = await self._until(*_task(function(*args, **keywords)), limit_s)
            else:
                job = self._thread(lambda: function(*args, **keywords), alone=alone or self.stuck)
                value = await self._until(job, _end(job), limit_s)
            if inspect.isawaitable(value):  # a plain function that gave a coroutine
                value = await self._until(*_task(value), limit_s)
        except Overrun as overrun:
            self.stuck |= not overrun.stopped
            raise
        return value

    def close(self) -> None:
        """Let the thread end once its last job is done."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None

    async def _until(self, task: asyncio.Future[Any], ended: asyncio.Future[None], limit_s: float) -> Any:
        """Wait for the task, whose end `ended` tells, or the limit, whichever comes first. Owns the task."""
        if limit_s > 0:
            timer = after(limit_s, partial(_wake, ended))
            try:
                await ended
            except asyncio.CancelledError:
                await _stop(task)
                raise
            finally:
                timer.cancel()
        if not task.done():
            raise Overrun(stopped=await _stop(task))
        try:
            return task.result()
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise  # ordinary failures, and a stop that was asked for: as they are
        except BaseException as raised:  # GeneratorExit, a panic of native code: no business of the loop's
            raise _fault(raised) from raised

    def _thread(self, function: Callable[[], Any], *, alone: bool) -> asyncio.Future[Any]:
        """Run a plain function in a thread, in the caller's context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                if inspect.iscoroutine(value):
                    value.close()  # nobody will await it
            elif error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def job() -> None:
            value, error = None, None
            try:
                value = context.run(function)
            except BaseException as raised:  # the border of a thread: raised again by whoever awaits
                # A future refuses StopIteration, and what is no Exception would leave the loop.
                plain = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
                error = raised if plain else _fault(raised)
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError:
                return  # the loop closed while the call hung: nobody waits for it any more

        if alone:
            threading.Thread(target=job, name="treadle-env-call", daemon=True).start()
        else:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=_serve, args=(self._jobs,), name="treadle-env", daemon=True).start()
            self._jobs.put(job)
        return future


def _task(coroutine: Awaitable[Any]) -> tuple[asyncio.Task[Any], asyncio.Future[None]]:
    """A task of a coroutine, and what is done once that has ended: whoever waits need not ask the loop for news."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_contained(coroutine, ended))  # owned by the call: `_until` awaits its end, or stops it
    return task, ended


def _end(job: asyncio.Future[Any]) -> asyncio.Future[None]:
    """What is done once a thread's job has ended."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    job.add_done_callback(lambda _: _wake(ended))
    return ended


def _wake(ended: asyncio.Future[None]) -> None:
    """Let whoever waits go on: the call has ended, or its time has."""
    if not ended.done():
        ended.set_result(None)


async def _contained(coroutine: Awaitable[Any], ended: asyncio.Future[None]) -> Any:
    """Keep `sys.exit()` in user code from ending the event loop, and say when it has ended.

    The task itself ends in the same step, so that it is done before anybody goes on.
    """
    try:
        return await coroutine
    except SystemExit as raised:
        raise _fault(raised) from raised
    finally:
        _wake(ended)


def _fault(raised: BaseException) -> EnvError:
    """What no program should raise, as the environment's fault."""
    return EnvError(f"{type(raised).__name__}: {one_line(raised)}")


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    """Body of an environment's thread."""
    while (job := jobs.get()) is not None:
        job()


async def _stop(task: asyncio.Future[Any]) -> bool:
    """Cancel a call; True when it ended within the grace time."""
    if not isinstance(task, asyncio.Task):
        task.cancel()  # only the future: the thread behind it runs on
        return False
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_S)
    if task.done():
        _forget(task)
        return True
    task.add_done_callback(_forget)
    coroutine = task.get_coro()
    try:
        if inspect.iscoroutine(coroutine):
            coroutine.close()  # GeneratorExit: what swallows CancelledError in a loop mostly lets this one through
    except BaseException:  # the border to user code: it refuses to close, whatever it says
        _abandon(task)
    else:
        task.cancel()
    return False


async def end_strays() -> None:
    """End every task of the running loop but the calling one: what user code started and left behind.

    Those that refuse are let go of, so this takes no longer than the grace time.
    """
    strays = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*map(_stop, strays))


def _abandon(task: asyncio.Task[Any]) -> None:
    """Take a task that cannot be stopped out of its loop's books: the end of the loop would wait for it for ever."""
    asyncio.tasks._unregister_task(task)
    _ABANDONED.add(task)


def _forget(task: asyncio.Future[Any]) -> None:
    """Take note of the exception of a call nobody waits for, so that the loop does not complain."""
    if not task.cancelled():
        task.exception()
