"""Runs for code that blocks: scripts, notebooks, the command line.

`block` plays a coroutine to its end: on a fresh loop of this thread, or, where a loop is running already (a notebook),
in a thread and a loop of its own, while this thread waits.

Interrupting has two steps. The first Ctrl-C (or SIGTERM) pulls the brake: the run stops as soon as nothing is lost and
the coroutine returns as usual. From then on signals go to whoever handled them before. Where that is Python itself, the
second Ctrl-C cancels the run, which closes its environments and its engine, and KeyboardInterrupt is raised; in a
notebook that is raised at once, while the thread of the run tidies up. Only a main thread hears signals.

Who waits for whom: the calling thread for the run; the run for nobody. The brake wakes the run's loop. It is pulled
inside a signal handler, so nothing here takes a lock. A signal that comes just before a thread begins to wait would not
end that wait: the loop is woken by a descriptor, the waiting thread looks up now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar

from treadle.core.errors import EnvError
from treadle.envs.calling import end_strays

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What pulls the brake."""
LOOK_UP_S = 0.5
"""How often a thread that waits for a run looks for signals."""


class Brake:
    """Stops one run from outside of its event loop. Any thread may pull it, also before there is something to stop."""

    def __init__(self) -> None:
        self.pulled = False
        self.cancelled = False
        self._stop: Callable[[], object] = lambda: None
        self._main: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether there is something to stop."""
        return self._loop is not None

    def pull(self) -> None:
        """Ask the run to stop."""
        self.pulled = True
        self._soon(self._stop)

    def cancel(self) -> None:
        """Cancel what is left of it."""
        self.cancelled = True
        if self._main is not None:
            self._soon(self._main.cancel)

    @contextlib.contextmanager
    def governs(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, which is in the run's own task, the brake calls `stop`."""
        self._stop, self._main = stop, asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self.pulled:
            stop()
        try:
            with _woken_by_signals(self._loop):
                yield
        finally:
            self._loop = None

    def _soon(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing left to stop
                loop.call_soon_threadsafe(call)


def block(work: Callable[[Brake], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, which is given the brake that stops it. Raises KeyboardInterrupt at the second Ctrl-C."""
    brake = Brake()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _here(work, brake)
    return _beside(work, brake)


async def _alone(work: Callable[[Brake], Coroutine[Any, Any, T]], brake: Brake) -> T:
    """The result of `work`. No task outlives it: what user code left running is ended, so that the loop can end."""
    try:
        return await work(brake)
    except asyncio.CancelledError:
        if brake.cancelled:
            raise
        raise EnvError(
            "the run was cancelled from inside: an environment must cancel only tasks that it started"
        ) from None
    finally:
        await end_strays()


def _here(work: Callable[[Brake], Coroutine[Any, Any, T]], brake: Brake) -> T:
    """Run it in this thread."""

    def second(number: int, frame: FrameType | None) -> None:
        if brake.cancelled or not brake.running:
            raise KeyboardInterrupt
        brake.cancel()

    with _signals(brake, second):
        try:
            return asyncio.run(_alone(work, brake))
        except asyncio.CancelledError:
            if brake.cancelled:
                raise KeyboardInterrupt from None
            raise


def _beside(work: Callable[[Brake], Coroutine[Any, Any, T]], brake: Brake) -> T:
    """Run it in a thread of its own and wait for it."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(asyncio.run(_alone(work, brake)))
        except BaseException as error:  # a thread's border: whatever ended it is raised in the thread that waits
            ended.set_exception(error)

    with _signals(brake, signal.default_int_handler):
        threading.Thread(target=run, name="treadle-run", daemon=True).start()
        try:
            while not ended.done():  # for as long as the run lasts: each wait inside has its own deadline
                wait([ended], timeout=LOOK_UP_S)
            return ended.result(0)
        except BaseException:  # nobody waits for the run any more
            brake.cancel()
            raise


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let the loop of the main thread run whenever a signal came."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop.add_reader(ours, lambda: ours.recv(4096))
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)


@contextlib.contextmanager
def _signals(brake: Brake, second: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """The first of SIGNALS pulls the brake and gives them back; `second` stands in for Python's KeyboardInterrupt.

    What is ignored, or handled outside of Python, stays so.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if main else {}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}

    def give_back() -> None:
        for number, old in before.items():
            signal.signal(number, old)

    def first(number: int, frame: FrameType | None) -> None:
        give_back()
        if before.get(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, second)
        brake.pull()

    for number in before:
        signal.signal(number, first)
    try:
        yield
    finally:
        give_back()
