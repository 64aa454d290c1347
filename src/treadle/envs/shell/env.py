"""ShellEnv: one file task in one sandboxed shell.

The model writes one command in a ```bash block; the answer is a user message with what it printed, cut in the middle
when long. A turn without a block ends the rollout and is the final message. Every turn has at most one command: the
first block counts. A block that was never closed is not run, and the model is told so. Scoring happens on the host's
side: the scene's check sees the last output, the final message, and the workspace through the safe reader.

The sandbox, and how the episode forks with it, are those of `SandboxedEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from treadle.core.actions import Action, CodeBlock
from treadle.core.messages import Message, system, user
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.env import EnvContext
from treadle.envs.grading import Kind, listing, read_bytes
from treadle.envs.sandbox import Sandbox
from treadle.envs.sandboxed import NOT_CLOSED, SandboxedEnv, answer, observation
from treadle.envs.shell.checks import Evidence, Tree
from treadle.envs.shell.taskset import scene
from treadle.envs.step import Step
from treadle.envs.task import Task

SYSTEM_PROMPT = (
    "Solve the task in a Linux shell. Write one command in a ```bash block; you see its output. "
    "When done, answer without a block."
)
NOT_BASH = "Only a ```bash block is run."
_LANGUAGES = frozenset({"bash", "sh", ""})
_FILE_BYTES = 1 << 18
_ENTRIES = 256


class ShellEnv(SandboxedEnv):
    """A task of `ShellTaskset` in a sandbox of its own."""

    max_turns = 4

    def __init__(
        self, make_sandbox: Callable[[], Sandbox] = BubblewrapSandbox, *, command_timeout_s: float = 10.0,
        state_keys: bool = False,
    ) -> None:
        """`state_keys` names the state after every turn: the files and the last output, by digest."""
        super().__init__(make_sandbox, command_timeout_s=command_timeout_s)
        self._state_keys = state_keys
        self._task: Task | None = None
        self._output = ""
        self._statement = ""
        self._commands = 0

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        """Start the sandbox and fill its workspace."""
        self._task, shown = task, scene(task)
        sandbox = await self.open_sandbox()
        await sandbox.write_files(shown.files, folders=sorted(shown.folders))
        return [system(SYSTEM_PROMPT), user(task.prompt)]

    async def step(self, action: Action) -> Step:
        """Run the first block of the turn; a turn without one is the final message."""
        if not action.blocks:
            self._statement = action.text
            return Step(terminated=True)
        block = action.blocks[0]
        refusal = _refusal(block)
        if refusal:
            return answer(refusal, error=True, state_key=self._state())
        result = await self.ran(block.code)
        self._output = result.output
        self._commands += 1
        return answer(
            observation(result), error=result.status != 0, seconds=result.seconds, state_key=self._state()
        )

    async def score(self) -> Mapping[str, float]:
        """`correct`: 1 when the scene's check passes, else 0."""
        assert self._task is not None, "score before reset"
        evidence = Evidence(
            output=self._output, statement=self._statement, commands=self._commands, tree=look(self.sandbox)
        )
        return {"correct": float(scene(self._task).check.passes(evidence))}

    def _state(self) -> str | None:
        """What the files and the last output are; what only the shell holds (its folder, variables) is not in it."""
        if not self._state_keys:
            return None
        tree = look(self.sandbox)
        parts = (sorted(tree.files.items()), sorted(tree.modes.items()), sorted(tree.folders), sorted(tree.odd))
        return blake2b(repr((parts, self._output)).encode(), digest_size=16).hexdigest()


def _refusal(block: CodeBlock) -> str:
    """Why a block is not run; empty when it is."""
    if block.language not in _LANGUAGES:
        return NOT_BASH
    return "" if block.closed else NOT_CLOSED


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
