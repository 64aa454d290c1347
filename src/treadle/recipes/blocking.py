"""Runs for code that blocks: scripts, notebooks, the command line.

`block` plays a coroutine to its end: on a fresh loop of this thread, or, where a loop is running already (a notebook),
in a thread and a loop of its own, while this thread waits.

Interrupting has two steps. The first Ctrl-C (or SIGTERM) pulls the brake: the run stops as soon as nothing is lost and
the coroutine returns as usual. From then on signals go to whoever handled them before, so the second Ctrl-C does what
Ctrl-C does elsewhere in the program: in a script the run is cancelled, its environments and its engine are closed, and
KeyboardInterrupt is raised. In a notebook the waiting thread sees both as KeyboardInterrupt and does the same by hand.

Who waits for whom: the calling thread for the run; the run for nobody. The brake wakes the run's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What pulls the brake in the main thread."""


class Brake:
    """Stops one run from outside of its event loop. Any thread may pull it, also before there is something to stop."""

    def __init__(self) -> None:
        self.pulled = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stop: Callable[[], None] = lambda: None

    def pull(self) -> None:
        """Ask the run to stop."""
        self._soon(self._pull)

    def cancel(self) -> None:
        """Cancel what is left of it."""
        if self._main is not None:
            self._soon(self._main.cancel)

    @contextlib.contextmanager
    def governs(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within the block, in the run's own task, the brake calls `stop`; in the main thread signals pull it."""
        with self._lock:
            self._loop, self._main, self._stop = asyncio.get_running_loop(), asyncio.current_task(), stop
        if self.pulled:
            stop()
        try:
            with self._signals(self._loop):
                yield
        finally:
            with self._lock:
                self._loop = None

    def _pull(self) -> None:
        self.pulled = True
        self._stop()

    def _soon(self, call: Callable[[], object]) -> None:
        with self._lock:
            if self._loop is None:
                self.pulled = True
            else:
                self._loop.call_soon_threadsafe(call)

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """The first of SIGNALS pulls the brake and gives all of them back. Ignored ones stay ignored."""
        before = {} if threading.current_thread() is not threading.main_thread() else _handlers()

        def give_back() -> None:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
            before.clear()

        def first() -> None:
            give_back()
            self._pull()

        for number in before:
            loop.add_signal_handler(number, first)
        try:
            yield
        finally:
            give_back()


def block(work: Callable[[Brake], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, which is given the brake that stops it. Raises KeyboardInterrupt at the second Ctrl-C."""
    brake = Brake()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work(brake))
    return _beside(work, brake)


def _beside(work: Callable[[Brake], Awaitable[T]], brake: Brake) -> T:
    """Run it in a thread of its own and wait for it."""
    ended: Future[T] = Future()

    async def whole() -> T:
        return await work(brake)

    def run() -> None:
        try:
            ended.set_result(asyncio.run(whole()))
        except BaseException as error:  # a thread's border: whatever ended it is raised in the thread that waits
            ended.set_exception(error)

    threading.Thread(target=run, name="treadle-run", daemon=True).start()
    while True:
        try:
            return ended.result()  # no deadline: this is the run, and each wait inside has its own
        except KeyboardInterrupt:
            if brake.pulled or ended.done():
                brake.cancel()
                raise
            brake.pull()


def _handlers() -> dict[signal.Signals, Any]:
    """Who handles each signal now."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    return {
        number: signal.SIG_DFL if handler is None else handler
        for number, handler in found.items() if handler is not signal.SIG_IGN
    }
