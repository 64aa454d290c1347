"""Env: one live episode of a world, as a user writes it.

A subclass says how the episode starts (`reset`), how it is scored (`score`), and what the agent can do: methods marked
`@tool`, or an own `step(action)`. Methods may be `async def` or plain `def` (then they run in the environment's own
thread). Environments know messages and actions, never tokens. They raise `ToolError` to speak to the model; every other
exception is the environment's fault and ends the rollout unscored. The host (`treadle.envs.host`) drives the episode.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

from treadle.core.actions import Action
from treadle.core.messages import Message, ToolSpec
from treadle.core.ports import Clock
from treadle.core.seeds import Stream
from treadle.envs.calling import Caller
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.envs.tools import Tool, dispatch, specs_of, tools_of

T = TypeVar("T")
Maybe: TypeAlias = Awaitable[T] | T
"""What a method of an environment may return: `async def` and plain `def` are both welcome."""


class Fork(StrEnum):
    """How a live episode can be forked."""

    NONE = "none"
    COPY = "copy"
    """`snapshot` and `restore` copy the state in memory."""
    REPLAY = "replay"
    """Play the action log again from `reset`, checking `digest` after each step."""
    NATIVE = "native"
    """The environment's own snapshot (a file system, a virtual machine)."""

    @property
    def copies(self) -> bool:
        """Whether a snapshot is a copy of the environment's state."""
        return self in (Fork.COPY, Fork.NATIVE)

    @property
    def logs(self) -> bool:
        """Whether a snapshot is the log of what was done."""
        return self is Fork.REPLAY


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvContext:
    """What an episode may use besides its task. Equal for all rollouts of a group."""

    rng: random.Random
    """Randomness of this episode, started from `seed`."""
    seed: Stream
    """Named stream of this (task, env seed)."""
    clock: Clock


class Env:
    """Base class of environments."""

    tier: ClassVar[str] = "real"
    """`sim`, `recorded` or `real`."""
    fork: ClassVar[Fork] = Fork.NONE
    deterministic: ClassVar[bool] = False
    """Equal actions from an equal start always give equal answers."""
    max_turns: int = 8
    """The host ends the rollout (truncated, limit) after this many actions."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Take `fork = "copy"` for `Fork.COPY`. Raises ValueError for a word that is no level."""
        super().__init_subclass__(**options)
        try:
            cls.fork = Fork(cls.fork)
        except ValueError:
            levels = ", ".join(f"Fork.{level.name}" for level in Fork)
            raise ValueError(f"{cls.__name__}.fork: got {cls.fork!r}, expected one of {levels}") from None

    def reset(self, task: Task, ctx: EnvContext) -> Maybe[Sequence[Message]]:
        """Set up and return the first messages: the prompt."""
        raise NotImplementedError(f"{type(self).__name__}.reset is not written")

    def step(self, action: Action) -> Maybe[Step]:
        """Answer one action. By default its calls go to the `@tool` methods; an action without calls ends it."""
        return self.call_tools(action)

    async def call_tools(self, action: Action) -> Step:
        """The default step, for subclasses that add to it."""
        if not action.calls:
            return Step(terminated=True)
        return await dispatch(self, action.calls, caller=self.caller)

    def score(self) -> Maybe[Mapping[str, float] | float | None]:
        """Reward of the finished episode, whole or in named parts; None when it cannot be scored."""
        return None

    def snapshot(self) -> Maybe[Any]:
        """The whole state of the episode, for `restore`: also what it keeps of its task and context.

        The host copies what this gives, deeply. With `fork = Fork.COPY` it need not be written: it is all attributes.
        """
        if self.fork is not Fork.COPY:
            raise NotImplementedError(f"{type(self).__name__}.snapshot is not written")
        return {name: value for name, value in vars(self).items() if name != "caller"}

    def restore(self, snapshot: Any) -> Maybe[None]:
        """Take over a state that `snapshot` gave, in an object that was made but perhaps never reset."""
        if self.fork is not Fork.COPY:
            raise NotImplementedError(f"{type(self).__name__}.restore is not written")
        vars(self).update(snapshot)
        return None

    def digest(self) -> str | None:
        """Digest of the world's state; None when there is none."""
        return None

    def close(self) -> Maybe[None]:
        """Free what the episode holds. May be called at any point, also before `reset`."""
        return None

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told about the tools."""
        return specs_of(type(self))

    def tools(self) -> Mapping[str, Tool]:
        """The tools that the default step dispatches to, by name."""
        return tools_of(type(self))

    @cached_property
    def caller(self) -> Caller:
        """Runs this environment's methods and tools; plain functions in one thread of its own."""
        return Caller()
