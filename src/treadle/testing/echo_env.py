"""The smallest world: it asks for a word, says back what it hears, and pays for the word."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from treadle.core.actions import Action
from treadle.core.errors import InfraError
from treadle.core.messages import Message, user
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.step import Step
from treadle.envs.task import Task


class EchoEnv(Env):
    """Solved when any action says `task.data["word"]`.

    `data` may also hold `turns` (actions until it is over, default 1), `latency` (seconds per step) and `fault`, one of
    `reset`, `step`, `score` (raises there), `infra` (the machinery fails), `hang` (a step never ends).
    """

    deterministic = True
    fork = Fork.COPY

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        """Ask for the word."""
        self._task, self._clock, self._fault = task, ctx.clock, str(task.data.get("fault", ""))
        self.heard: list[str] = []
        self._fail_at("reset")
        return [user(task.prompt)]

    async def step(self, action: Action) -> Step:
        """Say it back; over after the last turn."""
        data = self._task.data
        self._fail_at("step")
        if self._fault == "infra":
            raise InfraError("echo: the machinery failed as it was told to")
        if self._fault == "hang":
            await asyncio.Event().wait()  # for ever: the host's deadline is what this is for
        if data.get("latency"):
            await self._clock.sleep(float(data["latency"]))
        self.heard.append(action.text.strip())
        return Step(
            messages=(user(f"you said {action.text.strip()}"),),
            terminated=len(self.heard) >= int(data.get("turns", 1)), state_key=str(len(self.heard)),
        )

    async def score(self) -> Mapping[str, float]:
        """1 for the word."""
        self._fail_at("score")
        return {"correct": float(self._task.data["word"] in self.heard)}

    def _fail_at(self, place: str) -> None:
        if self._fault == place:
            raise RuntimeError(f"echo: {place} failed as it was told to")


class EchoTaskset:
    """Task i asks for word i of a list, over and over. Endless."""

    def __init__(
        self, words: Sequence[str] = ("yes", "no"), *, data: Mapping[str, object] | None = None,
        faults: Mapping[int, str] | None = None,
    ) -> None:
        self.words = tuple(words)
        self.data = dict(data or {})
        self.faults = dict(faults or {})
        """Task number to the fault of its environment."""

    def size(self, split: str) -> int | None:
        """Endless."""
        return None

    def task(self, split: str, index: int) -> Task:
        """Ask for a word."""
        word = self.words[index % len(self.words)]
        fault = {"fault": self.faults[index]} if index in self.faults else {}
        return Task(
            id=f"echo-{split}-{index}", prompt=f"say {word}", family=word, level="easy", split=split,
            data={**self.data, "word": word, **fault},
        )

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """Say the word, every turn."""
        return [task.data["word"]] * int(task.data.get("turns", 1))
