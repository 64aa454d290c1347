"""Playing scripted rollouts of shell tasks."""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.seeds import Stream
from treadle.envs.env import EnvContext
from treadle.envs.sandbox import CommandResult
from treadle.envs.shell import ShellEnv
from treadle.envs.step import Step

OPEN, CLOSE = "```bash\n", "\n```"


def act(turn: str) -> Action:
    """A scripted turn as an action."""
    if not turn.startswith(OPEN):
        return Action(text=turn)
    return Action(text=turn, blocks=(CodeBlock(language="bash", code=turn.removeprefix(OPEN).removesuffix(CLOSE)),))


@pytest.fixture
def ctx() -> EnvContext:
    return EnvContext(rng=random.Random(0), seed=Stream(0), clock=SystemClock())


@dataclass
class FakeSandbox:
    """Answers from a script and keeps its workspace in a plain folder."""

    workspace: Path
    results: list[CommandResult | Exception] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    effect: Callable[[Path], None] = lambda _: None
    """What each command does to the workspace."""
    closed: bool = False

    async def start(self) -> None:
        self.workspace.mkdir()

    async def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        modes: Mapping[str, int] | None = None,
        mtimes: Mapping[str, float] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        assert modes is None
        assert mtimes is None
        for folder in folders:
            (self.workspace / folder).mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            (self.workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (self.workspace / path).write_bytes(content)

    async def run(self, command: str, *, timeout_s: float = 10.0) -> CommandResult:
        self.commands.append(command)
        self.effect(self.workspace)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sandbox(tmp_path: Path) -> FakeSandbox:
    return FakeSandbox(workspace=tmp_path / "work")


@pytest.fixture
def env(sandbox: FakeSandbox) -> ShellEnv:
    return ShellEnv(lambda: sandbox)


@pytest.fixture
def play() -> Callable[[ShellEnv, Sequence[str]], Awaitable[list[Step]]]:
    """Take turns in an environment that was reset; stops where it ends."""

    async def played(env: ShellEnv, turns: Sequence[str]) -> list[Step]:
        steps: list[Step] = []
        for turn in turns:
            steps.append(await env.step(act(turn)))
            if steps[-1].done:
                break
        return steps

    return played
