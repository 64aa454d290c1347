"""CodeEnv: one function to write, in one sandbox with Python.

The model writes a ```python block; it is run as a program in the workspace and the model sees what it prints. The last
block that ran is the solution. A turn without a block ends the rollout. Files that blocks leave stay for later ones.

Tests stay outside. When the rollout is scored, the solution is run once more, with the inputs of the tests; what it
gives is compared with what it should give out here. So nothing in the sandbox ever holds an answer: whoever prints the
right results has computed them.

Forks are native, like those of the shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treadle.core.actions import Action
from treadle.core.messages import Message, system, user
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.code.taskset import Hidden, hidden
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.image import Image
from treadle.envs.sandbox import Sandbox
from treadle.envs.shell.env import NOT_CLOSED, observation
from treadle.envs.step import Step, ToolResult
from treadle.envs.task import Task

PYTHON = "/usr/bin/python3"
SYSTEM_PROMPT = (
    "Solve the task in Python. Write a ```python block; it is run, and you see its output. When done, answer without "
    "a block: your last block is the solution."
)
NOT_PYTHON = "Only a ```python block is run."
SOLUTION = "solution.py"
_JUDGE = f"""
import json, sys
scope = {{"__name__": "solution"}}
exec(compile(open("/dev/stdin").read(), "{SOLUTION}", "exec"), scope)
print("\\n" + json.dumps([scope["f"](given) for given in json.loads(sys.argv[1])]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    """Where an episode stands."""

    task: Task
    image: Image
    solution: str


class CodeEnv(Env):
    """A task of `CodeTaskset` in a sandbox of its own."""

    fork: ClassVar[Fork] = Fork.NATIVE
    max_turns = 4

    def __init__(
        self, make_sandbox: Callable[[], Sandbox] = BubblewrapSandbox, *, command_timeout_s: float = 10.0
    ) -> None:
        self._make_sandbox = make_sandbox
        self._timeout_s = command_timeout_s
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None
        self._hidden: Hidden | None = None
        self._solution = ""

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        """Start the sandbox."""
        self._task, self._hidden = task, hidden(task)
        self._sandbox = self._make_sandbox()
        await self._sandbox.start()
        return [system(SYSTEM_PROMPT), user(task.prompt)]

    async def step(self, action: Action) -> Step:
        """Run the first block of the turn; a turn without one ends the rollout."""
        if not action.blocks:
            return Step(terminated=True)
        block = action.blocks[0]
        refusal = NOT_PYTHON if block.language not in ("python", "") else "" if block.closed else NOT_CLOSED
        if refusal:
            return Step(messages=(user(refusal),), results=(ToolResult(call=None, content=refusal, error=True),))
        assert self._sandbox is not None, "step before reset"
        self._solution = block.code
        result = await self._sandbox.run(f"{PYTHON} - <<'{_END}'\n{block.code}\n{_END}", timeout_s=self._timeout_s)
        seen = observation(result)
        done = ToolResult(call=None, content=seen, error=result.status != 0, seconds=result.seconds)
        return Step(messages=(user(seen),), results=(done,))

    async def score(self) -> Mapping[str, float]:
        """`correct`: 1 when the solution gives what it should for every input of the tests, else 0."""
        assert self._sandbox is not None, "score before reset"
        assert self._hidden is not None, "score before reset"
        if not self._solution:
            return {"correct": 0.0}
        given = shlex.quote(json.dumps(self._hidden.inputs))
        judge = f"{PYTHON} -I -c {shlex.quote(_JUDGE)} {given}"
        result = await self._sandbox.run(f"{judge} <<'{_END}'\n{self._solution}\n{_END}", timeout_s=self._timeout_s)
        last = result.output.strip().rpartition("\n")[2]
        return {"correct": float(result.status == 0 and last == json.dumps(self._hidden.results))}

    async def snapshot(self) -> CodeState:
        """Files, shell and the solution so far."""
        assert self._sandbox is not None, "snapshot before reset"
        assert self._task is not None, "snapshot before reset"
        return CodeState(task=self._task, image=await self._sandbox.snapshot(), solution=self._solution)

    async def restore(self, snapshot: CodeState) -> None:
        """Start a sandbox with these files."""
        await self.close()
        self._task, self._hidden, self._solution = snapshot.task, hidden(snapshot.task), snapshot.solution
        self._sandbox = self._make_sandbox()
        await self._sandbox.start()
        await self._sandbox.restore(snapshot.image)

    async def close(self) -> None:
        """Free the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()


_END = "__TREADLE_END_OF_PROGRAM__"
"""Ends a program on its way through the shell; a block that holds it as a line is cut there."""
