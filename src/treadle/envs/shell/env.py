"""ShellEnv: one file task in one sandboxed shell.

The model writes one command in a ```bash block; the answer is a user message with what it printed, cut in the middle
when long. A turn without a block ends the rollout and is the final message. Every turn has at most one command: the
first block counts. A block that was never closed is not run, and the model is told so. Scoring happens on the host's
side: the scene's check sees the last output, the final message, and the workspace through the safe reader.

Forks are native: the files and the state of the shell, written into a sandbox of the fork's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treadle.core.actions import Action, CodeBlock
from treadle.core.messages import Message, system, user
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.grading import Kind, listing, read_bytes
from treadle.envs.image import Image
from treadle.envs.sandbox import CommandResult, Sandbox
from treadle.envs.shell.checks import Evidence, Tree
from treadle.envs.shell.family import Scene
from treadle.envs.shell.taskset import scene
from treadle.envs.step import Step, ToolResult
from treadle.envs.task import Task

SYSTEM_PROMPT = (
    "Solve the task in a Linux shell. Write one command in a ```bash block; you see its output. "
    "When done, answer without a block."
)
NOT_CLOSED = "The block was not closed, so nothing was run."
NOT_BASH = "Only a ```bash block is run."
_LANGUAGES = frozenset({"bash", "sh", ""})
_HEAD_CHARS, _TAIL_CHARS = 100, 60
_FILE_BYTES = 1 << 18
_ENTRIES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellState:
    """Where an episode of the shell stands."""

    task: Task
    image: Image
    output: str
    commands: int


class ShellEnv(Env):
    """A task of `ShellTaskset` in a sandbox of its own."""

    fork: ClassVar[Fork] = Fork.NATIVE
    max_turns = 4

    def __init__(
        self, make_sandbox: Callable[[], Sandbox] = BubblewrapSandbox, *, command_timeout_s: float = 10.0
    ) -> None:
        self._make_sandbox = make_sandbox
        self._timeout_s = command_timeout_s
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None
        self._scene: Scene | None = None
        self._output = ""
        self._statement = ""
        self._commands = 0

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        """Start the sandbox and fill its workspace."""
        self._task, self._scene = task, scene(task)
        self._sandbox = self._make_sandbox()
        await self._sandbox.start()
        await self._sandbox.write_files(self._scene.files, folders=sorted(self._scene.folders))
        return [system(SYSTEM_PROMPT), user(task.prompt)]

    async def step(self, action: Action) -> Step:
        """Run the first block of the turn; a turn without one is the final message."""
        if not action.blocks:
            self._statement = action.text
            return Step(terminated=True)
        block = action.blocks[0]
        refusal = _refusal(block)
        if refusal:
            return Step(messages=(user(refusal),), results=(ToolResult(call=None, content=refusal, error=True),))
        assert self._sandbox is not None, "step before reset"
        result = await self._sandbox.run(block.code, timeout_s=self._timeout_s)
        self._output = result.output
        self._commands += 1
        seen = observation(result)
        done = ToolResult(call=None, content=seen, error=result.status != 0, seconds=result.seconds)
        return Step(messages=(user(seen),), results=(done,))

    async def score(self) -> Mapping[str, float]:
        """`correct`: 1 when the scene's check passes, else 0."""
        assert self._scene is not None, "score before reset"
        assert self._sandbox is not None, "score before reset"
        evidence = Evidence(
            output=self._output, statement=self._statement, commands=self._commands, tree=look(self._sandbox)
        )
        return {"correct": float(self._scene.check.passes(evidence))}

    async def snapshot(self) -> ShellState:
        """Files, shell and what scoring needs."""
        assert self._sandbox is not None, "snapshot before reset"
        assert self._task is not None, "snapshot before reset"
        image = await self._sandbox.snapshot()
        return ShellState(task=self._task, image=image, output=self._output, commands=self._commands)

    async def restore(self, snapshot: ShellState) -> None:
        """Start a sandbox with these files and this shell."""
        await self.close()
        self._task, self._scene = snapshot.task, scene(snapshot.task)
        self._output, self._statement, self._commands = snapshot.output, "", snapshot.commands
        self._sandbox = self._make_sandbox()
        await self._sandbox.start()
        await self._sandbox.restore(snapshot.image)

    async def close(self) -> None:
        """Free the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()


def _refusal(block: CodeBlock) -> str:
    """Why a block is not run; empty when it is."""
    if block.language not in _LANGUAGES:
        return NOT_BASH
    return "" if block.closed else NOT_CLOSED


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


def look(sandbox: Sandbox) -> Tree:
    """The workspace as it is now, links not followed; what is too large or too much stands in `odd`."""
    root = sandbox.workspace
    found = listing(root, most=_ENTRIES)
    odd = set() if found.complete else {"..."}
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    folders = set()
    for entry in found.entries:
        if entry.kind is Kind.FOLDER:
            folders.add(entry.path)
            continue
        content = read_bytes(root, entry.path, most=_FILE_BYTES) if entry.kind is Kind.FILE else None
        if content is None:
            odd.add(entry.path)
            continue
        files[entry.path], modes[entry.path] = content, entry.mode
    return Tree(files=files, folders=frozenset(folders), modes=modes, odd=frozenset(odd))
