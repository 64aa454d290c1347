"""A box: one running shell driver with its process, its channel and its open folders; and the sandbox around it.

A sandbox lives in one box at a time. It gives the box commands, one after the other. When the driver is gone while a
command runs, that is the command's doing: the box is ended, a new one takes over its files, and the command's result
says `restarted`. When the driver is gone with no command running, the sandbox is lost and says so.

Who waits for whom: opening waits for the driver's `ready`; `run` for its `done` or its death; `end` for the exit of the
process, at most EXIT_S. Files stay readable until `release`, also after the processes are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from treadle.core.errors import SandboxError
from treadle.envs.channel import Channel, Gone
from treadle.envs.driver import START
from treadle.envs.image import Image, captured, written
from treadle.envs.sandbox import CommandResult, SandboxLimits
from treadle.envs.seeding import write_tree
from treadle.envs.usage import Usage

T = TypeVar("T")
STATE = ".state"
"""The driver's folder, in the last area."""
START_S = 30.0
"""How long a box may take to open, on a machine that is busy with other things."""
COPY_S = 30.0
"""How long reading, or writing, all files of a box may take."""
EXIT_S = 5.0
NICE = 10
"""Niceness of a box's processes and of their session."""


class Pipes:
    """Control socket and output pipe of a box: our ends, and the ends that its process inherits."""

    def __init__(self, *, owner: int | None) -> None:
        ours, theirs = socket.socketpair()
        self.control, self.their_control = ours, theirs.detach()
        self.output, self.their_output = os.pipe()
        if owner is not None:
            os.fchown(self.their_output, owner, owner)  # so that /dev/stdout and /dev/stderr can be opened inside

    def started(self) -> None:
        """The process has its ends: close our copies."""
        os.close(self.their_control)
        os.close(self.their_output)

    def close(self) -> None:
        """Close our ends; only while no channel owns them."""
        self.control.close()
        os.close(self.output)


class Box:
    """One running driver."""

    def __init__(
        self, process: subprocess.Popen[bytes], pipes: Pipes, *, limits: SandboxLimits, bounded: bool = True
    ) -> None:
        """`bounded` says that the areas are file systems of the box's own, whose files may be counted."""
        self.process = process
        self.first = 0
        """The host's id of the driver's process; 0 until it is known."""
        self.areas: list[int] = []
        """Open folders on its writable areas; the workspace comes first, the one with the driver's state last."""
        self._usage: Usage | None = None
        self._limits, self._bounded = limits, bounded
        self._loop = asyncio.get_running_loop()
        self._exit = os.pidfd_open(process.pid)
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self.channel = Channel(
            pipes.control, pipes.output, interrupt=self.interrupt, most_bytes=limits.output_bytes, guard=self._guard
        )

    @property
    def workspace(self) -> Path:
        """Path of the workspace within this process."""
        return Path(f"/proc/self/fd/{self.areas[0]}")

    async def ready(self, find: Callable[[str], tuple[int, list[Path]]]) -> None:
        """Wait for the driver, then open the areas. `find` tells the driver's host id and the areas from its greeting.

        Raises SandboxError, and leaves nothing behind then.
        """
        try:
            async with asyncio.timeout(START_S):
                await self.channel.ready()
            self.first, areas = find("\n".join(self.channel.greeting))
            for area in areas:
                self.areas.append(os.open(area, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            counted = self.areas if self._bounded else []
            self._usage = Usage(first=self.first, areas=counted, limits=self._limits)
            _stand_back(self.first)
        except (Gone, TimeoutError, OSError, ValueError, KeyError) as error:
            words = self.channel.captured() or str(error) or type(error).__name__
            await self.end()
            self.release()
            raise SandboxError(f"sandbox: cannot start: {words.splitlines()[0]}") from error
        except asyncio.CancelledError:
            await self.end()
            self.release()
            raise

    def interrupt(self) -> None:
        """Have the driver kill the running command."""
        self._signal(signal.SIGUSR1)

    async def end(self) -> None:
        """Kill the processes and wait until they are gone. May be called by several at the same time."""
        self._signal(signal.SIGKILL)
        if not self.first:
            self.process.kill()
        self.channel.close()
        if not self._exited.done():
            self._loop.add_reader(self._exit, self._on_exit)
            await asyncio.wait({self._exited}, timeout=EXIT_S)
            self.process.kill()  # nothing, once it has exited
        self.process.poll()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._exit)
        if not self._exited.done():
            self._exited.set_result(None)

    def release(self) -> None:
        """Let go of the files. Idempotent."""
        if self._exit >= 0:
            self._loop.remove_reader(self._exit)
            for descriptor in (self._exit, *self.areas):
                os.close(descriptor)
            self._exit = -1
            self.areas.clear()

    @property
    def alive(self) -> bool:
        """Whether the driver is there, as far as is known."""
        return not self.channel.gone and self.process.poll() is None

    async def with_areas(self, function: Callable[[list[int]], T]) -> T:
        """Have a thread do something with the areas. It holds them itself: the box may end meanwhile.

        Whoever takes them first closes them: the thread, or we where it never began because all threads were busy.
        """
        waiting = deque([[os.dup(area) for area in self.areas]])

        def held() -> T:
            areas = waiting.pop()
            try:
                return function(areas)
            finally:
                _close_all(areas)

        try:
            async with asyncio.timeout(COPY_S):
                return await asyncio.to_thread(held)
        finally:
            with contextlib.suppress(IndexError):  # the thread has them
                _close_all(waiting.pop())

    def _signal(self, number: signal.Signals) -> None:
        if self.first and self.process.poll() is None:
            try:
                os.kill(self.first, number)
            except ProcessLookupError:
                return  # it ended by itself

    def _guard(self) -> str:
        return self._usage() if self._usage is not None else ""


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _stand_back(first: int) -> None:
    """Let commands take a core only when the trainer leaves one free.

    A matrix product over all cores waits for its slowest thread: one command on one core stops the others as well. A
    kernel that shares the processor by sessions looks at the session's own niceness and not at its processes'.
    """
    with contextlib.suppress(OSError):  # not allowed here, or too often: it only makes things slower
        os.setpriority(os.PRIO_PROCESS, first, NICE)
        Path(f"/proc/{first}/autogroup").write_text(str(NICE), encoding="ascii")


class BoxedSandbox(ABC):
    """What every sandbox with a shell driver does alike."""

    def __init__(self, *, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self._box: Box | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @abstractmethod
    async def _opened(self, old: Box | None) -> Box:
        """A fresh box, with the files of the ended box `old`. Raises SandboxError."""

    @property
    @abstractmethod
    def _owner(self) -> int | None:
        """The machine's user id that the sandbox's user is; None when that is our own."""

    @property
    @abstractmethod
    def _home(self) -> str:
        """Path of the workspace as the shell knows it."""

    @property
    def workspace(self) -> Path:
        """Host-side path of the workspace; valid until `close`, within this process only."""
        return self._live().workspace

    async def start(self) -> None:
        """Start the shell. Raises SandboxError with the reason and the remedy."""
        if self._box is not None or self._closed:
            raise RuntimeError("a sandbox starts once")
        self._box = await self._opened(None)

    async def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        modes: Mapping[str, int] | None = None,
        mtimes: Mapping[str, float] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        """Write files into the workspace. Raises EnvError when it cannot hold them."""
        root = self._live().areas[0]
        write_tree(root, files, modes=modes or {}, mtimes=mtimes or {}, folders=tuple(folders), owner=self._owner)

    async def run(self, command: str, *, timeout_s: float = 10.0) -> CommandResult:
        """Run one command in the persistent shell. When it takes the shell's driver down, a new one takes over."""
        async with self._turn:
            box = self._live()
            if box.channel.gone:
                raise SandboxError("the sandbox was lost while no command was running")
            try:
                return await box.channel.run(command, timeout_s=timeout_s)
            except Gone as gone:
                if self._box is not box:
                    raise SandboxError("the sandbox was closed while a command was running") from gone
                await box.end()
                if gone.result is None:
                    raise SandboxError("the sandbox was lost while no command was running") from gone
                self._box = await self._taken_over(box)
                return gone.result

    async def snapshot(self) -> Image:
        """The files of all areas and the state of the shell, between two commands."""
        limits = self.limits

        def taken(areas: list[int]) -> Image:
            return captured(
                areas, state=STATE, slot=slot, home=self._home, most_files=2 * len(areas) * limits.workspace_files,
                most_bytes=len(areas) * limits.workspace_bytes,
            )

        async with self._turn:
            box = self._live()
            slot = box.channel.slot
            return await self._settled(box, taken, "its files could not be read")

    async def restore(self, image: Image) -> None:
        """Put files and state of an image into this sandbox, which has just started."""

        def put(areas: list[int]) -> None:
            written(image, areas, state=STATE, slot=START, home=self._home, owner=self._owner)

        async with self._turn:
            await self._settled(self._live(), put, "a snapshot could not be written into it")

    async def _settled(self, box: Box, function: Callable[[list[int]], T], wrong: str) -> T:
        """Have a thread do something with the areas of a box that lives before and after."""
        lost = SandboxError("the sandbox was lost while no command was running")
        if not box.alive:
            raise lost
        try:
            value = await box.with_areas(function)
        except OSError as error:
            raise SandboxError(f"sandbox: {wrong}: {error}") from error
        if not box.alive or self._box is not box:
            raise lost
        return value

    async def _taken_over(self, old: Box) -> Box | None:
        """A fresh box in place of one whose driver is gone; None when the sandbox was closed meanwhile."""
        new = await self._opened(old) if not self._closed else None
        old.release()
        if new is None:
            return None
        if not self._closed:
            return new
        await new.end()
        new.release()
        return None

    async def close(self) -> None:
        """Kill everything inside and free the workspace."""
        self._closed = True
        box, self._box = self._box, None
        if box is not None:
            try:
                await box.end()
            finally:
                box.release()

    def _live(self) -> Box:
        if self._box is None:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        return self._box
