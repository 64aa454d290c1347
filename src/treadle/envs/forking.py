"""How the levels of forks take a state from a live environment and put it into a fresh one.

    COPY, NATIVE   Env.snapshot -> state -> deep copy, kept -> deep copy -> Env.restore of an environment never reset
    REPLAY         what was done so far -> Env.reset with the same task and seed -> the same steps, digests compared

One deep copy holds the state together with the episode's context, so whatever the environment kept of it (`ctx.rng`)
is still the same object within the copy. Each restore copies again: forks of one state never share what can change.
What never changes is not copied: the task, the clock, the contents of files. References to the environment itself are
led to the new one.

Randomness. "same" gives a fork the state of `ctx.rng` that the snapshot saw. "split" puts a stream of its own in place,
named after the snapshot and the fork, so that it does not depend on who is resumed first.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from treadle.core.actions import Action
from treadle.core.errors import EnvError, one_line
from treadle.core.messages import Message, ToolSpec
from treadle.core.ports import Clock
from treadle.core.seeds import Stream
from treadle.envs.env import Env, EnvContext
from treadle.envs.step import Step
from treadle.envs.task import Task

Rng = Literal["same", "split"]
"""What a fork draws from: what its parent would have drawn, or a stream of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One action of a log."""

    action: Action
    digest: str
    """Of the world after it, else of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Where an episode stands: what `EnvHost.resume` needs beside the environment's own state."""

    task: Task
    seed: Stream
    messages: tuple[Message, ...]
    """The prompt."""
    tools: tuple[ToolSpec, ...]
    taken: int
    """Actions since the start."""
    turns: int
    """Actions that are left."""
    seconds: float
    """What is left of the episode's time."""
    begun: str
    """Digest after `reset`; only where a log is kept."""
    log: tuple[Done, ...] = ()
    """All actions since the start; only at the level REPLAY."""
    splits: tuple[tuple[int, Stream], ...] = ()
    """After how many actions it began to draw from which stream of its own; only at the level REPLAY."""
    copied: Copied | None = None
    """The environment's state; None at the level REPLAY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A state, the context that it was made with, and what stands for the environment within it. One deep copy."""

    state: Any
    context: EnvContext
    anchor: Env

    @classmethod
    def of(cls, env: Env, state: object, *, context: EnvContext, task: Task) -> Copied:
        """A copy. Raises EnvError when the state holds what cannot be copied."""
        if state is env:
            raise EnvError(f"{type(env).__name__}.snapshot: got the environment itself, expected its state")
        anchor = object.__new__(type(env))
        memo = _kept(task, context.clock) | {id(env): anchor}
        made, own = _copied((state, context), memo, env)
        return cls(state=made, context=own, anchor=anchor)

    def into(self, env: Env, *, task: Task, clock: Clock, stream: Stream | None) -> tuple[object, EnvContext]:
        """A copy for a fresh environment. `stream` is a split fork's own; None keeps the randomness."""
        memo = _kept(task, clock) | {id(self.anchor): env, id(self.context.clock): clock}
        if stream is not None:
            memo |= {id(self.context.rng): stream.python(), id(self.context.seed): stream}
        return _copied((self.state, self.context), memo, env)


def split(context: EnvContext, stream: Stream) -> None:
    """Have a context draw from another stream from here on; the objects stay, whoever holds them."""
    context.rng.setstate(stream.python().getstate())
    object.__setattr__(context, "seed", stream)


def digest_of(world: object, answer: object) -> str:
    """What stands for the world after a step: its own digest, else what it answered, times and call ids aside.

    Raises EnvError for a digest that is neither text nor None.
    """
    if isinstance(world, str):
        return world
    if world is not None:
        raise EnvError(f"digest: got {type(world).__name__}, expected str or None")
    parts = answer
    if isinstance(answer, Step):
        spoken = [(m.role, m.content) for m in answer.messages]
        parts = (spoken, answer.reward, answer.terminated, answer.truncated, answer.state_key)
    return hashlib.blake2b(repr(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _kept(task: Task, clock: Clock) -> dict[int, Any]:
    """What a deep copy leaves as it is."""
    return {id(task): task, id(clock): clock}


def _copied(whole: tuple[Any, EnvContext], memo: dict[int, Any], env: Env) -> tuple[Any, EnvContext]:
    try:
        made: tuple[Any, EnvContext] = copy.deepcopy(whole, memo)
    except Exception as error:  # the border to user code: anything may stand in a state and refuse to be copied
        raise EnvError(
            f"{type(env).__name__}: its state cannot be copied ({type(error).__name__}: {one_line(error)}): write "
            "snapshot and restore, or set fork=Fork.REPLAY"
        ) from error
    return made
