"""The conformance kit of forks accepts what forks well and catches what does not."""

from __future__ import annotations

from typing import ClassVar

import pytest

from treadle.core.actions import Action
from treadle.core.messages import Message, user
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.testing import check_forks

TASK = Task(id="count", prompt="count")


class Counting(Env):
    """Says how many actions it saw."""

    fork = Fork.COPY

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.seen: list[str] = []
        return [user("go")]

    async def step(self, action: Action) -> Step:
        self.seen.append(action.text)
        return Step(messages=(user(f"{self.seen}"),))

    async def score(self) -> float:
        return float(len(self.seen))


class Sharing(Counting):
    """All live episodes have one memory, which a reset empties."""

    memory: ClassVar[list[str]] = []

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.memory.clear()
        return await super().reset(task, ctx)

    async def step(self, action: Action) -> Step:
        self.memory.append(action.text)
        return Step(messages=(user(f"{self.memory}"),))


class Forgetful(Counting):
    """Its snapshot lacks what it saw."""

    def snapshot(self) -> int:
        return len(self.seen)

    def restore(self, snapshot: int) -> None:
        self.seen = ["?"] * snapshot


class Unscored(Counting):
    """Its score leaves out what was done before the fork."""

    def snapshot(self) -> list[str]:
        return self.seen

    def restore(self, snapshot: list[str]) -> None:
        self.seen, self.before = snapshot, len(snapshot)

    async def score(self) -> float:
        return float(len(self.seen) - vars(self).get("before", 0))


class Alone(Counting):
    fork = Fork.NONE


def actions(_task: Task) -> list[Action]:
    return [Action(text=text) for text in "abcd"]


@pytest.mark.parametrize("level", [Fork.COPY, Fork.REPLAY])
async def test_what_forks_well_passes(level: Fork) -> None:
    class Good(Counting):
        fork = level

    await check_forks(Good, [TASK], actions=actions)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Sharing, "a fork sees another world"),
        (Forgetful, "a fork sees another world"),
        (Unscored, "a fork that did the same scored"),
        (Alone, "could not be forked: .*refused.none"),
    ],
)
async def test_what_does_not_is_named(kind: type[Env], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        await check_forks(kind, [TASK], actions=actions)
