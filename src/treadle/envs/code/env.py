"""CodeEnv: one function to write, in one sandbox with Python.

The model writes a ```python block; it is run as a program in the workspace and the model sees what it prints. The last
block that ran is the solution. A turn without a block ends the rollout. Files that blocks leave stay for later ones.

Tests stay outside. When the rollout is scored, the solution is run once more, with the inputs of the tests; what it
gives is compared with what it should give out here. So nothing in the sandbox ever holds an answer: whoever prints the
right results has computed them.

The sandbox, and how the episode forks with it, are those of `SandboxedEnv`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from treadle.core.actions import Action
from treadle.core.messages import Message, system, user
from treadle.envs.code.taskset import hidden
from treadle.envs.env import EnvContext
from treadle.envs.sandboxed import NOT_CLOSED, SandboxedEnv, answer, observation
from treadle.envs.step import Step
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


class CodeEnv(SandboxedEnv):
    """A task of `CodeTaskset` in a sandbox of its own."""

    max_turns = 4
    _task: Task | None = None
    _solution = ""

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        """Start the sandbox. Raises ValueError for a task of another kind."""
        hidden(task)
        self._task, self._solution = task, ""
        await self.open_sandbox()
        return [system(SYSTEM_PROMPT), user(task.prompt)]

    async def step(self, action: Action) -> Step:
        """Run the first block of the turn; a turn without one ends the rollout."""
        if not action.blocks:
            return Step(terminated=True)
        block = action.blocks[0]
        refusal = NOT_PYTHON if block.language not in ("python", "") else "" if block.closed else NOT_CLOSED
        if refusal:
            return answer(refusal, error=True)
        self._solution = block.code
        result = await self.ran(f"{PYTHON} - <<'{_END}'\n{block.code}\n{_END}")
        return answer(observation(result), error=result.status != 0, seconds=result.seconds)

    async def score(self) -> Mapping[str, float]:
        """`correct`: 1 when the solution gives what it should for every input of the tests, else 0."""
        assert self._task is not None, "score before reset"
        if not self._solution:
            return {"correct": 0.0}
        tests = hidden(self._task)
        judge = f"{PYTHON} -I -c {shlex.quote(_JUDGE)} {shlex.quote(json.dumps(tests.inputs))}"
        result = await self.ran(f"{judge} <<'{_END}'\n{self._solution}\n{_END}")
        last = result.output.strip().rpartition("\n")[2]
        return {"correct": float(result.status == 0 and last == json.dumps(tests.results))}


_END = "__TREADLE_END_OF_PROGRAM__"
"""Ends a program on its way through the shell; a block that holds it as a line is cut there."""
