"""The host's end of a persistent shell: one command at a time, its output, its end.

Three ways lead to a driver (`treadle.envs.driver`): a control socket (commands in, `ready` and `done` lines out), the
output pipe, and a signal that makes it kill the running command. All three are watched by the event loop; nothing
here blocks. A running command ends in one of three ways, and each wakes the one who awaits `run`:

- the driver says `done` with this command's nonce: every process of the command is dead, so what stands in the pipe
  now is all there will ever be;
- a limit passes (time, output, or what a guard found): the driver is signalled and says `done` soon after;
- the driver is gone, or does not answer the signal: `Gone` is raised, and the owner decides.

Lines on the control socket that do not carry the nonce are ignored. Output beyond the cap is read off and counted,
so a command that floods is stopped by a kill and never by a full pipe.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable

from treadle.envs.driver import SLOTS, START
from treadle.envs.sandbox import CommandResult

MOST_COMMAND_BYTES = 100_000
"""Longer commands are refused, as a kernel refuses an argument list that is too long."""
ANSWER_S = 3.0
"""How long a driver may take to kill a command and say so."""
SIGNAL_S = 0.05
FIRST_GUARD_S = 0.05
GUARD_S = 0.1
_LINE_BYTES = 4096

Guard = Callable[[], str]
"""Looks at what a running command uses; the reason to kill it, or an empty string."""


class Gone(Exception):
    """The driver ended, or does not answer."""

    result: CommandResult | None = None
    """What became of the command that was running; None when there was none."""


class Channel:
    """One driver's control socket and output pipe. Owns both and closes them."""

    def __init__(
        self, control: socket.socket, output: int, *, interrupt: Callable[[], None], most_bytes: int, guard: Guard
    ) -> None:
        control.setblocking(False)
        os.set_blocking(output, False)
        self._control, self._output = control, output
        self._interrupt, self._guard, self._most = interrupt, guard, most_bytes
        self._loop = asyncio.get_running_loop()
        self._line = b""
        self._command: _Command | None = None
        self._head = self._loop.create_future()
        self.greeting: list[str] = []
        """Lines that came before `ready`."""
        self.gone = False
        """True once the driver closed its end."""
        self.slot = START
        """Name of the driver's file that holds the state of the shell."""
        self._loop.add_reader(control, self._on_control)

    async def ready(self) -> None:
        """Wait until the driver says `ready`. Raises Gone when it ends first."""
        await self._head

    async def run(self, command: str, *, timeout_s: float) -> CommandResult:
        """Run one command. Raises Gone; when cancelled, the command is killed first."""
        data = command.replace("\0", "").encode(errors="replace")
        if len(data) > MOST_COMMAND_BYTES:
            return CommandResult(status=126, output="bash: command too long\n")
        if self.gone:
            raise Gone("the shell's driver is gone")
        self._take()
        running = self._command = _Command(self._loop, most=self._most, interrupt=self._interrupt)
        self._loop.add_reader(self._output, self._on_output)
        try:
            self._send(running.nonce.encode() + b"\0" + data + b"\0")
            running.later(timeout_s, running.kill, "time")
            running.later(FIRST_GUARD_S, self._look)
            try:
                await self._ended(running)
            except Gone as gone:
                self._on_output()
                gone.result = running.result(restarted=True)
                raise
            self._on_output()
            return running.result()
        finally:
            running.cancel_timers()
            self._command = None
            self._loop.remove_reader(self._output)

    def captured(self) -> str:
        """What stands in the output pipe: the words of a sandbox that did not start."""
        return self._take().decode(errors="replace").strip()

    def close(self) -> None:
        """Close both ends. Idempotent."""
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        self._loop.remove_reader(self._output)
        os.close(self._output)
        self._end(Gone("closed"))

    async def _ended(self, running: _Command) -> None:
        """Wait for the command's end; a cancelled wait kills it and waits for that."""
        try:
            await asyncio.shield(running.done)
        except asyncio.CancelledError:
            running.kill("cancelled")
            await asyncio.wait({running.done}, timeout=2 * ANSWER_S)
            self.gone |= not running.done.done() or running.done.exception() is not None
            raise

    def _send(self, data: bytes) -> None:
        try:
            sent = self._control.send(data)
        except OSError as error:
            raise Gone(f"the shell's driver cannot be reached: {error}") from error
        if sent < len(data):
            raise Gone("the shell's driver does not read")

    def _look(self) -> None:
        """One look of the guard at a running command; then the next one is set."""
        running = self._command
        if running is None or running.killed:
            return
        if reason := self._guard():
            running.kill(reason)
        else:
            running.later(GUARD_S, self._look)

    def _on_control(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            self._loop.remove_reader(self._control)
            self._end(Gone("the shell's driver ended"))
            return
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LINE_BYTES:]
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def _on_line(self, line: str) -> None:
        if not self._head.done():
            if line == "ready":
                self._head.set_result(None)
            elif len(self.greeting) < 64:
                self.greeting.append(line)
            return
        if self._command is not None and self._command.on_line(line):
            self.slot = SLOTS[self.slot == SLOTS[0]]

    def _end(self, reason: Gone) -> None:
        """Wake whoever waits: nothing more will come."""
        waiting = self._head if not self._head.done() else self._command.done if self._command else None
        if waiting is not None and not waiting.done():
            waiting.set_exception(reason)
            waiting.exception()  # seen: whoever awaits it still gets it

    def _on_output(self) -> None:
        """Give what stands in the pipe to the running command."""
        data = self._take()
        if self._command is not None and data:
            self._command.on_output(data)

    def _take(self) -> bytes:
        """Read what stands in the pipe now: at most its capacity, so that a flood cannot hold the loop."""
        try:
            return os.read(self._output, 1 << 20)
        except (BlockingIOError, OSError):
            return b""


class _Command:
    """One running command."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int, interrupt: Callable[[], None]) -> None:
        self.nonce = secrets.token_hex(8)
        self.done: asyncio.Future[tuple[int, bool]] = loop.create_future()
        self.killed = ""
        self._loop, self._most, self._interrupt = loop, most, interrupt
        self._output = bytearray()
        self._dropped = 0
        self._started = time.perf_counter()
        self._timers: list[asyncio.TimerHandle] = []

    def later(self, seconds: float, function: Callable[..., None], *args: object) -> None:
        """Set a timer that dies with the command."""
        self._timers.append(self._loop.call_later(seconds, function, *args))

    def cancel_timers(self) -> None:
        """The command ended."""
        for timer in self._timers:
            timer.cancel()

    def kill(self, reason: str) -> None:
        """Have the driver kill the command; if it does not say so in time, it counts as gone."""
        if self.killed or self.done.done():
            return
        self.killed = reason
        self.later(ANSWER_S, self._unanswered)
        self._signal()

    def _signal(self) -> None:
        """Signal the driver, again and again: a signal that comes before the command was forked finds nothing."""
        if not self.done.done():
            self._interrupt()
            self.later(SIGNAL_S, self._signal)

    def _unanswered(self) -> None:
        if not self.done.done():
            self.done.set_exception(Gone("the shell's driver does not answer"))
            self.done.exception()  # seen: whoever awaits it still gets it

    def on_line(self, line: str) -> bool:
        """Take a line of the driver: this command's end, or noise. True when the shell's state was saved."""
        words = line.split(" ")
        if len(words) != 4 or words[:2] != ["done", self.nonce] or not words[2].isdigit() or self.done.done():
            return False
        self.done.set_result((int(words[2]), words[3] == "1"))
        return words[3] == "1"

    def on_output(self, data: bytes) -> None:
        """Keep output up to the cap; beyond it, kill and count."""
        kept = data[: self._most - len(self._output)]
        self._output += kept
        self._dropped += len(data) - len(kept)
        if self._dropped:
            self.kill("output")

    def result(self, *, restarted: bool = False) -> CommandResult:
        """What became of it."""
        status, saved = (None, True) if restarted else self.done.result()
        return CommandResult(
            status=None if self.killed else status,
            output=self._output.decode(errors="replace"),
            dropped_bytes=self._dropped,
            timed_out=self.killed == "time",
            restarted=restarted or not (saved or self.killed),
            killed=self.killed,
            seconds=time.perf_counter() - self._started,
        )
