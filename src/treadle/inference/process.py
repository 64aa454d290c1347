"""A process that an engine lives in, seen from the event loop that owns it: started, asked, watched, ended.

    ask() -- frame --> socket pair --> child: answers, refuses, and says every quarter of a second that it lives
                            future <-- frame --

No port is opened: the child inherits one end of a socket pair and nothing else, and reads the end of the line when its
owner is gone, however it went; then it ends at once. Who waits for whom: an asker for its own future, which the answer,
the child's end, or silence wakes. A child that says nothing for `Patience.silence_s` is killed and named; what was
asked of it fails with EngineError, as does what is asked later. An asker that is cancelled has its request cancelled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import IO, Any

from treadle.core.errors import DeadlineExceeded, EngineError, PromptTooLong, WeightMismatch
from treadle.inference.frames import Arrays, Frame, Line

LOOK_UP_S = 1.0
"""How often one who waits looks whether the child is still there."""
TAIL_BYTES = 4000
"""How much of what a child wrote to its standard error is looked at."""
REFUSALS: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (PromptTooLong, ValueError, EngineError, WeightMismatch, DeadlineExceeded)
}
"""What a child may refuse with; anything else is an EngineError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the owner of a child waits for what, and how many children it loses."""

    start_s: float = 180.0
    """Until it has read its model and says that it is ready."""
    silence_s: float = 60.0
    """For any sign of life."""
    load_s: float = 600.0
    """For new weights to be drained for, loaded and checked."""
    close_s: float = 20.0
    """For it to end by itself."""
    restarts: int = 0
    """How often one that ended before its time is started again."""


class EngineProcess:
    """One child."""

    def __init__(self, command: Sequence[str], job: Mapping[str, Any], *, patience: Patience) -> None:
        self.pulse = Frame(kind="pulse", values={"signal": {}, "statistics": {}})
        """What the child last said about itself."""
        self.dead = "the engine is not running: use it inside `async with engine:`"
        """Why nothing can be asked; empty while it is well."""
        self._command = tuple(command)
        self._job = dict(job)
        self._patience = patience
        self._line = Line(hear=self._hear, lost=self._lost)
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._numbers = count()
        self._heard = 0.0
        """Monotonic seconds of the last frame."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        """What the child writes to its standard error."""

    @property
    def pid(self) -> int:
        """Of the child; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    @property
    def silent_s(self) -> float:
        """Seconds since it was last heard of."""
        return time.monotonic() - self._heard

    async def start(self) -> Frame:
        """Start the child; what it says of itself when it is ready. Raises EngineError with what it died of."""
        loop = asyncio.get_running_loop()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `stop`
        ours, theirs = socket.socketpair()
        with theirs:
            job = {**self._job, "line": theirs.fileno(), "owner": os.getpid()}
            try:
                self._process = subprocess.Popen(
                    [*self._command, json.dumps(job)], pass_fds=[theirs.fileno()], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr, env=_environment(),
                )
            except OSError as error:
                ours.close()
                raise EngineError(f"the engine's process cannot be started: {self._command[0]}: {error}") from error
        ready = self._asked[next(self._numbers)] = loop.create_future()  # number 0: a child's first answer
        await loop.create_connection(lambda: self._line, sock=ours)
        self.dead, self._heard = "", time.monotonic()
        try:
            return await self._await(ready, "the start of the engine's process", silence_s=self._patience.start_s)
        except BaseException:  # nobody will use it: it must not stay; raised again
            self._kill("it was given up while it started")
            raise

    async def ask(self, kind: str, values: Mapping[str, Any], arrays: Arrays = (), *, what: str) -> Frame:
        """The child's answer. Raises what it refuses with, EngineError when it is gone or silent."""
        if self.dead:
            raise EngineError(f"{what}: {self.dead}")
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._line.send(kind, {**values, "number": number}, arrays)
            return await self._await(future, what, silence_s=self._patience.silence_s)
        except BaseException:  # whoever asked is gone, or must not get a late answer: raised again
            self.tell("cancel", {"number": number})
            raise
        finally:
            del self._asked[number]
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen, whoever raised it

    def tell(self, kind: str, values: Mapping[str, Any]) -> None:
        """Say something that has no answer; silence when nobody is there to hear it."""
        if not self.dead:
            self._line.send(kind, values)

    def pending(self) -> list[asyncio.Future[Frame]]:
        """What is asked and not answered yet."""
        return [future for future in self._asked.values() if not future.done()]

    def give_up(self, reason: str) -> None:
        """Fail everything that is asked now; the child goes on."""
        for future in self.pending():
            future.set_exception(EngineError(reason))

    async def stop(self) -> None:
        """Hang up, and end the child if that does not. Calling it again does nothing."""
        self._fail("the engine is closed")
        self._line.close()
        if self._process is not None:
            await asyncio.to_thread(self._reap)
        if self._stderr is not None:
            self._stderr.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _hear(self, frame: Frame) -> None:
        self._heard = time.monotonic()
        if "signal" in frame.values:
            self.pulse = frame
        if frame.kind == "pulse":
            return
        future = self._asked.get(frame.values["number"])
        if future is None or future.done():
            return
        if frame.kind == "refused":
            kind = REFUSALS.get(frame.values["error"])
            message = frame.values["message"]
            future.set_exception(kind(message) if kind else EngineError(f"{frame.values['error']}: {message}"))
        else:
            future.set_result(frame)

    def _lost(self) -> None:
        """The line is down: find out why in a thread, since a large process takes a while to go."""
        if self.dead:
            return
        cause = asyncio.get_running_loop().run_in_executor(None, self._cause)
        cause.add_done_callback(lambda found: self._fail(found.result()))

    async def _await(self, future: asyncio.Future[Frame], what: str, *, silence_s: float) -> Frame:
        while True:
            done, _ = await asyncio.wait({future}, timeout=min(silence_s, LOOK_UP_S))
            if done:
                return future.result()
            if time.monotonic() - self._heard >= silence_s:
                self._kill(f"it said nothing for {silence_s:g} s")
            if self.dead:
                raise EngineError(f"{what}: {self.dead}")

    def _kill(self, why: str) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._fail(f"the engine's process {self.pid} was ended: {why}")

    def _fail(self, reason: str) -> None:
        self.dead = self.dead or reason
        self.give_up(self.dead)

    def _reap(self) -> int:
        """The child's exit status; it is killed when it has not ended in time. Blocking."""
        assert self._process is not None
        try:
            return self._process.wait(self._patience.close_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(self._patience.close_s)

    def _cause(self) -> str:
        """What the child died of. Blocking."""
        status = self._reap()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        assert self._stderr is not None
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - TAIL_BYTES))
        said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return f"the engine's process {self.pid} ended with {how}" + (f": {said[-1][:300]}" if said else "")


def _environment() -> dict[str, str]:
    """This process's own, in which the child finds the same modules."""
    places = [place or os.getcwd() for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
