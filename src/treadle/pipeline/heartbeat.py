"""The heartbeat: says where the event loop stands still.

Everything waits on one event loop: deadlines, answers of the engine, Ctrl-C. Code that blocks inside an `async def` of
an environment stops all of it, and no deadline can speak, because deadlines run on the loop too. So a thread asks the
loop for a sign of life again and again. When none comes for a while it says at once which line the loop is in; when
the loop turns again, the event `wait.expired` records it.

Who waits for whom: the thread for the loop, for ever, and it is a daemon; the loop for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

EVERY_S = 1.0
"""Between two questions."""
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@contextlib.contextmanager
def heartbeat(
    *, say: Callable[[str], object], tell: Callable[[str], object], patience_s: float = 10.0
) -> Iterator[None]:
    """Within the block, watch the running loop. `say` is called from the thread, `tell` on the loop."""
    beat = _Beat(asyncio.get_running_loop(), threading.get_ident(), say=say, tell=tell, patience_s=patience_s)
    thread = threading.Thread(target=beat.run, name="treadle-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        beat.end()
        thread.join(1.0)


class _Beat:
    """What the thread does."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: int, *, say: Callable[[str], object],
        tell: Callable[[str], object], patience_s: float,
    ) -> None:
        self._loop, self._thread, self._patience_s = loop, thread, patience_s
        self._say, self._tell = say, tell
        self._ended = threading.Event()
        self._turned = threading.Event()

    def run(self) -> None:
        """Ask until the end."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing left to watch
            while not self._ended.wait(EVERY_S):
                self._turned.clear()
                asked = time.monotonic()
                self._loop.call_soon_threadsafe(self._turned.set)
                if self._turned.wait(self._patience_s) or not (where := self._where()):
                    continue
                self._say(f"the event loop stands still for {self._patience_s:g} s {where}")
                self._turned.wait()
                what = f"the event loop stood still for {time.monotonic() - asked:.0f} s {where}"
                self._loop.call_soon_threadsafe(self._tell, what)

    def end(self) -> None:
        """Ask no more. On the loop."""
        self._ended.set()
        self._turned.set()

    def _where(self) -> str:
        """The innermost line of the loop's thread that is not a library's; empty when the loop only waits."""
        frame = sys._current_frames().get(self._thread)
        if frame is None or frame.f_code.co_name == "select":
            return ""
        found: FrameType | None = frame
        while found is not None and found.f_code.co_filename.startswith(LIBRARIES):
            found = found.f_back
        code = (found or frame).f_code
        line = (found or frame).f_lineno
        return f"in {code.co_qualname}, {code.co_filename}:{line}; what blocks belongs into a plain `def`"
