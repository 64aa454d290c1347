"""SandboxedEnv: the base of environments that act in one sandbox.

    reset --open_sandbox--> ran, ran, ... --> score --> close
                                 |
              snapshot: attributes + image --> restore: the same attributes, a sandbox of the fork's own

The base holds the sandbox: it opens it, gives it commands with a time limit, takes its image, frees it. A subclass
keeps everything else in plain attributes, of which a fork gets copies, so that nothing has to be written for it.

What a command does to itself is a result, which the model reads. The failure of a sandbox is an exception,
SandboxError, and the host makes it a failure of the machinery. A sandbox is held before it starts, so `close` frees it
wherever it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from treadle.core.messages import user
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.env import Env, Fork
from treadle.envs.image import Image
from treadle.envs.sandbox import CommandResult, Sandbox
from treadle.envs.step import Step, ToolResult

NOT_CLOSED = "The block was not closed, so nothing was run."
_HEAD_CHARS, _TAIL_CHARS = 100, 60
_HELD = frozenset({"caller", "_sandbox", "_make_sandbox"})
"""Attributes that no fork takes over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedState:
    """Where an episode in a sandbox stands."""

    image: Image
    attributes: Mapping[str, object]
    """All attributes of the environment, but for what holds its sandbox."""


class SandboxedEnv(Env):
    """An environment in a sandbox of its own: `reset` opens it, `ran` runs commands in it; it forks natively."""

    fork: ClassVar[Fork] = Fork.NATIVE

    def __init__(
        self, make_sandbox: Callable[[], Sandbox] = BubblewrapSandbox, *, command_timeout_s: float = 10.0
    ) -> None:
        self._make_sandbox = make_sandbox
        self._timeout_s = command_timeout_s
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that was opened."""
        assert self._sandbox is not None, "no sandbox before reset"
        return self._sandbox

    async def open_sandbox(self) -> Sandbox:
        """Start a sandbox, its workspace empty; one that was open before is freed. Raises SandboxError."""
        await self._free()
        self._sandbox = self._make_sandbox()
        await self._sandbox.start()
        return self._sandbox

    async def ran(self, command: str) -> CommandResult:
        """What became of a command, killed after `command_timeout_s`. Raises SandboxError when the sandbox is lost."""
        return await self.sandbox.run(command, timeout_s=self._timeout_s)

    async def snapshot(self) -> SandboxedState:
        """The files and the shell, and all attributes. Raises SandboxError, and EnvError for too many files."""
        own = {name: value for name, value in vars(self).items() if name not in _HELD}
        return SandboxedState(image=await self.sandbox.snapshot(), attributes=own)

    async def restore(self, snapshot: SandboxedState) -> None:
        """Start a sandbox with these files and this shell. Raises SandboxError."""
        vars(self).update(snapshot.attributes)
        await (await self.open_sandbox()).restore(snapshot.image)

    async def close(self) -> None:
        """Free the sandbox."""
        await self._free()

    async def _free(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()


def answer(content: str, *, error: bool = False, seconds: float = 0.0, state_key: str | None = None) -> Step:
    """The step that says this to the model. `error`: it went wrong; `seconds`: what it took."""
    result = ToolResult(call=None, content=content, error=error, seconds=seconds)
    return Step(messages=(user(content),), results=(result,), state_key=state_key)


def observation(result: CommandResult) -> str:
    """What the model reads: the output, cut in the middle, then what else there is to know about the command."""
    text = result.output.rstrip("\n")
    notes = []
    if result.killed:
        notes.append(f"[killed: {result.killed}]")
    elif result.status:
        notes.append(f"[exit {result.status}]")
    if result.restarted:
        notes.append("[shell restarted]")
    if not text and not notes:
        return "(no output)"
    return "\n".join([_cut(text, result.dropped_bytes), *notes] if text else notes)


def _cut(text: str, dropped_bytes: int) -> str:
    """Head and tail of a long text, with the number of bytes that are missing between or after them."""
    if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
        return text if not dropped_bytes else f"{text}\n[{dropped_bytes} more bytes]"
    head, tail = text[:_HEAD_CHARS], text[-_TAIL_CHARS:]
    missing = len(text[_HEAD_CHARS:-_TAIL_CHARS].encode()) + dropped_bytes
    return f"{head}\n[... {missing} bytes ...]\n{tail}"
