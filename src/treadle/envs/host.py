"""EnvHost: drives one live episode and turns everything that can go wrong into an outcome.

One host, one environment, one episode: `open`, then `act` per action, then `score`, then `close`. User code is called
through a `Caller`, with a time limit per stage. What it raises, returns wrongly or never returns becomes the outcome
of the table in `treadle.core.outcome`; nothing but cancellation leaves the host, and that only after the environment
is closed. `act` and `score` wait for each other (one lock); `close` waits for nobody but itself, so it can end an
episode in the middle of a step. After a failure that is not scored the environment is closed at once; otherwise it
stays open, its resources held, until it is scored and closed. Once begun, closing is finished, whoever is cancelled.

Forks: `snapshot` keeps where the episode stands in a store, `resume` begins an episode on a fresh host from there, in
place of `open` (`treadle.envs.forking` says how). A snapshot that cannot be made is None and changes nothing, unless
the environment hung in it: then the rollout ends with its next action.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from treadle.core.actions import Action
from treadle.core.errors import GraderError, InfraError, ReplayDiverged, first_of
from treadle.core.messages import Message, ToolSpec
from treadle.core.outcome import OK, Origin, Outcome, Status, failure, limit
from treadle.core.ports import Clock
from treadle.core.seeds import Stream
from treadle.envs import border
from treadle.envs.calling import GRACE_S, Caller, Overrun
from treadle.envs.env import Env, EnvContext
from treadle.envs.forking import Copied, Done, Episode, Rng, digest_of, split
from treadle.envs.snapshots import Snapshot, SnapshotStore
from treadle.envs.step import Step
from treadle.envs.task import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Time limits per stage, in seconds, and how often a failed grading is tried again."""

    setup_s: float = 30.0
    step_s: float = 30.0
    """For one step. A step that calls tools may also take the tools' own limits."""
    score_s: float = 30.0
    episode_s: float = 600.0
    """From the start of `open`; the next action after it ends the rollout (truncated, limit)."""
    close_s: float = 10.0
    score_retries: int = 1
    """More tries of a grading that raised or timed out."""

    def __post_init__(self) -> None:
        for name in ("setup_s", "step_s", "score_s", "episode_s", "close_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"host.{name}: got {getattr(self, name)}, expected > 0")
        if self.score_retries < 0:
            raise ValueError(f"host.score_retries: got {self.score_retries}, expected >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """How an episode started."""

    messages: tuple[Message, ...] = ()
    """The prompt; empty when `outcome` says that there is no episode."""
    tools: tuple[ToolSpec, ...] = ()
    outcome: Outcome | None = None
    """Set when the setup failed."""
    max_turns: int = 0
    """The environment's own limit on actions, of a fork what is left of it; 0 when the setup failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What grading gave."""

    parts: Mapping[str, float] | None = None
    """Named parts of the reward, all finite; None when the episode was not or could not be scored."""
    outcome: Outcome | None = None
    """Set when the grader failed, or when the rollout's own failure forbids scoring."""

    @property
    def reward(self) -> float | None:
        """Sum of the parts; None when not scored."""
        return None if self.parts is None else math.fsum(self.parts.values())


class Host(Protocol):
    """One episode, as a player sees it: `open` or `resume`, then `act` per action, then `score`, then `close`.

    Nothing but cancellation is raised for what an environment does: it becomes an outcome.
    """

    @property
    def tier(self) -> str:
        """Where the last answer came from: `sim`, `recorded` or `real`."""
        ...

    async def open(self, task: Task, seed: Stream, *, rollout: str = "") -> Opened:
        """Begin the episode. Called once. `rollout` names who plays it, for hosts that tell players apart."""
        ...

    async def resume(self, snapshot: Snapshot, *, rollout: str = "", rng: Rng = "same") -> Opened:
        """Begin an episode where a snapshot of another host stands, in place of `open`. Called once.

        The prompt is the one that the episode began with. `rng` says what the world draws from: what the snapshot's
        own episode would have drawn, or a stream of this fork's own. Raises RuntimeError for a released snapshot.
        """
        ...

    async def snapshot(self) -> Snapshot | None:
        """Keep where the episode stands; None when it cannot be forked, or there is no room for it."""
        ...

    async def act(self, action: Action, *, step_id: str) -> Step:
        """Answer one action; the same `step_id` again gives the same step."""
        ...

    async def score(self) -> Score:
        """Grade the episode, once."""
        ...

    async def close(self) -> None:
        """Free everything. Idempotent."""
        ...


class EnvHost:
    """Runs one environment through one episode. Never raises for what user code does."""

    def __init__(
        self, make_env: Callable[[], Env], *, config: HostConfig, clock: Clock, snapshots: SnapshotStore | None = None
    ) -> None:
        """`snapshots` keeps the snapshots of all hosts of a run; None makes one of the host's own when it is needed."""
        self._make, self._config, self._clock = make_env, config, clock
        self._snapshots = snapshots
        self._caller = Caller()
        self._env: Env | None = None
        self._context: EnvContext | None = None
        self._tier = Env.tier
        self._acting = asyncio.Lock()
        self._freed: asyncio.Future[None] | None = None
        """Ends when everything is freed; None until `close` was called."""
        self._turns = 0
        """Most actions, as the environment said after `reset`, or what is left of them."""
        self._steps: dict[str, Step] = {}
        self._scored: Score | None = None
        self._end: Outcome | None = None
        """Why no further action may follow; None while the episode goes on."""
        self._hung: Outcome | None = None
        """What the next action gets when the environment hung in a snapshot."""
        self._deadline = 0.0
        self._start: Episode | None = None
        """Where this host began: the start of the episode, or a snapshot's state."""
        self._rollout, self._forks = "", 0
        self._log: list[Done] = []
        """What was done since the start of the episode, at the level REPLAY."""

    @property
    def tier(self) -> str:
        """What the environment says it is."""
        return self._tier

    async def open(self, task: Task, seed: Stream, *, rollout: str = "") -> Opened:
        """Make the environment and reset it. Called once. All rollouts get the same."""
        self._begin(rollout)
        opened, outcome = await self._reset(task, seed)
        if opened is not None:
            return opened
        assert outcome is not None
        await self._fail(outcome)
        return Opened(outcome=outcome)

    async def resume(self, snapshot: Snapshot, *, rollout: str = "", rng: Rng = "same") -> Opened:
        """Begin where a snapshot stands, in place of `open`. What is left of its time and turns is this host's."""
        held = snapshot.state(Episode)
        self._begin(rollout)
        stream = held.seed.at("fork", snapshot.id, rollout or snapshot.forked()) if rng == "split" else None
        way = self._replayed if held.copied is None else self._restored
        outcome = await way(held, stream)
        if outcome is not None:
            await self._fail(outcome)
            return Opened(outcome=outcome)
        self._deadline = self._clock.now() + held.seconds
        self._turns, self._start = held.turns, replace(held, copied=None, log=())  # what is released is freed
        return Opened(messages=held.messages, tools=held.tools, max_turns=held.turns)

    async def snapshot(self) -> Snapshot | None:
        """Keep where the episode stands, between two actions; None when that cannot be."""
        async with self._acting:
            store = self._snapshots = self._snapshots or SnapshotStore()
            env, start, context = self._env, self._start, self._context
            if env is None or start is None or context is None or self._end or self._hung:
                store.refuse("over")
                return None
            if not (env.fork.copies or env.fork.logs):
                store.refuse("none", kind=type(env).__name__)
                return None
            copied, outcome = await self._copied(env, context, start.task) if env.fork.copies else (None, None)
            if outcome is not None:
                store.refuse(outcome.type)
                return None
            taken, again = start.taken + len(self._steps), f"+{self._forks + 1}" if self._forks else ""
            episode = replace(
                start, taken=taken, turns=self._turns - len(self._steps), seconds=self._deadline - self._clock.now(),
                log=tuple(self._log), copied=copied,
            )
            made = store.hold(
                f"{self._rollout}@{taken}{again}", episode, level=env.fork, shared=(start.task, self._clock)
            )
            self._forks += made is not None
            return made

    async def act(self, action: Action, *, step_id: str) -> Step:
        """Answer one action; the same `step_id` again gives the stored step.

        Raises RuntimeError when a new action follows the end of the episode.
        """
        async with self._acting:
            if step_id in self._steps:
                return self._steps[step_id]
            if self._env is None or self._end is not None:
                raise RuntimeError(f"step {step_id!r}: the episode is over ({self._end or 'closed'})")
            step = await self._step(self._env, action)
            if not step.done and self._env.fork.logs:
                step = await self._logged(self._env, action, step)
            if step.outcome is not None:
                await self._fail(step.outcome)
            elif step.terminated:
                self._end = OK
            self._steps[step_id] = step
            return step

    async def score(self) -> Score:
        """Grade the episode, once; later calls give the same. Not scored after failures of env or machinery."""
        async with self._acting:
            if self._scored is None:
                self._scored = await self._score()
            if self._caller.stuck:
                await self.close()
            return self._scored

    async def close(self) -> None:
        """Free everything. Idempotent, bounded by `close_s`, and done to its end also when the caller is cancelled.

        What `Env.close` raises changes nothing any more.
        """
        if self._freed is None:
            self._freed = asyncio.ensure_future(self._free())  # owned by those who close: each waits for its end
        cancelled: asyncio.CancelledError | None = None
        while not self._freed.done():
            try:
                await asyncio.wait({self._freed})
            except asyncio.CancelledError as error:  # raised again below, once the environment is freed
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _begin(self, rollout: str) -> None:
        if self._deadline:
            raise RuntimeError("EnvHost.open, or resume, is called once; a new attempt takes a new host")
        self._deadline, self._rollout = self._clock.now() + self._config.episode_s, rollout

    async def _made(self) -> Outcome | None:
        """Make the environment; the outcome when that failed."""
        env: Env | None
        if _runs_no_code(self._make):
            env, outcome = self._make(), None
        else:
            limit_s = self._config.setup_s
            env, outcome = await self._guard("setup", self._make, limit_s=limit_s, check=border.environment)
        if env is not None:
            vars(env)["caller"] = self._caller
            self._env, self._tier = env, str(env.tier)
        return outcome

    async def _reset(self, task: Task, seed: Stream) -> tuple[Opened | None, Outcome | None]:
        """Make the environment and reset it."""
        outcome = await self._made()
        if self._env is None:
            return None, outcome
        env = self._env
        context = self._context = EnvContext(rng=seed.python(), seed=seed, clock=self._clock)
        opened, outcome = await self._guard(
            "setup", env.reset, task, context, limit_s=self._config.setup_s, check=partial(_opened, env)
        )
        begun = ""
        if opened is not None and env.fork.logs:
            begun, outcome = await self._digest(env, [(m.role, m.content) for m in opened.messages])
        if opened is None or outcome is not None:
            return None, outcome
        self._turns = opened.max_turns
        self._start = Episode(
            task=task, seed=seed, messages=opened.messages, tools=opened.tools, taken=0, turns=opened.max_turns,
            seconds=0.0, begun=begun,
        )
        return opened, None

    async def _restored(self, held: Episode, stream: Stream | None) -> Outcome | None:
        """Put a copied state into a fresh environment."""
        outcome = await self._made()
        if self._env is None:
            return outcome
        env, copied = self._env, held.copied
        assert copied is not None, "no state was copied"
        made, outcome = await self._guard(
            "resume", partial(copied.into, task=held.task, clock=self._clock, stream=stream), env,
            limit_s=self._config.setup_s, check=lambda pair: pair,
        )
        if made is None:
            return outcome
        state, self._context = made
        _, outcome = await self._guard("resume", env.restore, state, limit_s=self._config.setup_s)
        vars(env)["caller"] = self._caller  # whatever the state was
        return outcome

    async def _replayed(self, held: Episode, stream: Stream | None) -> Outcome | None:
        """Lead a fresh environment through the log, comparing digests."""
        opened, outcome = await self._reset(held.task, held.seed)
        if opened is None or self._env is None or self._start is None:
            return outcome
        self._turns = held.taken + held.turns + 1  # no limit cuts a replay short
        if self._start.begun != held.begun:
            return failure(Origin.ENV, _diverged(held, 0))
        for number, done in enumerate(held.log, 1):
            step = await self._step(self._env, done.action)
            if step.outcome is None:
                step = await self._logged(self._env, done.action, step)
            if step.outcome is not None and step.outcome.failed:
                return step.outcome
            if step.done or self._log[-1].digest != done.digest:
                return failure(Origin.ENV, _diverged(held, number))
        if stream is not None and self._context is not None:
            split(self._context, stream)
        return None

    async def _logged(self, env: Env, action: Action, step: Step) -> Step:
        """Write an action into the log; the step, ended when the environment cannot say where it stands."""
        digest, outcome = await self._digest(env, step)
        if outcome is not None:
            return replace(step, outcome=outcome)
        self._log.append(Done(action=action, digest=digest))
        return step

    async def _digest(self, env: Env, answer: object) -> tuple[str, Outcome | None]:
        digest, outcome = await self._guard(
            "digest", env.digest, limit_s=self._config.step_s, check=lambda world: digest_of(world, answer)
        )
        return digest or "", outcome

    async def _copied(self, env: Env, context: EnvContext, task: Task) -> tuple[Copied | None, Outcome | None]:
        """A copy of the environment's state."""
        limit_s = self._config.setup_s

        def copied(state: object) -> Copied:
            return Copied.of(env, state, context=context, task=task)

        state, outcome = await self._guard("snapshot", env.snapshot, limit_s=limit_s, check=lambda given: (given,))
        made: Copied | None = None
        if state is not None:
            made, outcome = await self._guard("snapshot", copied, state[0], limit_s=limit_s, check=lambda given: given)
        if self._caller.stuck:
            self._hung = outcome
        return made, outcome

    async def _free(self) -> None:
        env, self._env = self._env, None
        try:
            if env is not None and type(env).close is not Env.close:
                await self._guard("close", env.close, limit_s=self._config.close_s)
        finally:
            self._caller.close()

    async def _step(self, env: Env, action: Action) -> Step:
        """One step with its time limit, checked and cut to the host's limits."""
        if self._hung is not None:
            return Step(outcome=self._hung)
        if self._clock.now() >= self._deadline:
            return Step(truncated=True, outcome=limit("time", f"the episode took {self._config.episode_s:g} s"))
        limit_s, method = self._config.step_s, env.step
        if type(env).step is Env.step:
            tools, method = env.tools(), env.call_tools
            limit_s += sum(tools[call.name].options.timeout_s + GRACE_S for call in action.calls if call.name in tools)
        step, outcome = await self._guard("step", method, action, limit_s=limit_s, check=partial(border.step, env))
        if step is None:
            return Step(outcome=outcome)
        if step.outcome is None and step.truncated:
            return replace(step, outcome=limit("env", "the environment's own limit"))
        if not step.done and len(self._steps) + 1 >= self._turns:
            return replace(step, truncated=True, outcome=limit("turns", f"{self._turns} turns"))
        return step

    async def _score(self) -> Score:
        """Grade with retries. A grader that hangs beyond cancelling is not tried again."""
        if self._end is not None and not self._end.scored:
            return Score(outcome=self._end)
        if self._env is None:
            return Score(outcome=failure(Origin.GRADER, GraderError("the environment is closed")))
        outcome: Outcome | None = None
        hung_before = self._caller.stuck
        for _ in range(1 + self._config.score_retries):
            parts, outcome = await self._guard(
                "score", self._env.score, limit_s=self._config.score_s, check=border.parts
            )
            if outcome is None:
                return Score(parts=parts)
            if self._caller.stuck and not hung_before:
                break
        assert outcome is not None
        return Score(outcome=replace(outcome, status=Status.ERROR, origin=Origin.GRADER))

    async def _fail(self, outcome: Outcome) -> None:
        """The episode ends here; without a score to come there is nothing to keep open."""
        self._end = outcome
        if not outcome.scored:
            await self.close()

    async def _guard(
        self, stage: str, function: Callable[..., Any], *args: object, limit_s: float,
        check: Callable[[Any], T | None] = lambda value: None,
    ) -> tuple[T | None, Outcome | None]:
        """Call user code: what `check` makes of its value, or the outcome that its failure means."""
        try:
            return check(await self._caller.call(function, *args, limit_s=limit_s)), None
        except Overrun as overrun:
            message = f"{stage} took longer than {limit_s:g} s and {overrun}"
            return None, Outcome(status=Status.ERROR, origin=Origin.ENV, type=f"{stage}_timeout", message=message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return None, failure(Origin.ENV, error)  # user code cancelled itself
            if task is not self._freed:
                await self.close()
            raise
        except Exception as error:
            # The border to user code: whatever it raises ends this rollout alone. It is the environment's bug, unless
            # it says that the machinery failed.
            infra = isinstance(first_of(error), InfraError)
            return None, failure(Origin.INFRA if infra else Origin.ENV, error)


def _runs_no_code(make: Callable[[], Env]) -> bool:
    """Whether it is a class without a constructor of its own: to make one, no thread is needed."""
    if not isinstance(make, type) or not issubclass(make, Env):
        return False
    return type(make) is type and make.__init__ is object.__init__ and make.__new__ is object.__new__


def _opened(env: Env, messages: object) -> Opened:
    return Opened(messages=border.prompt(env, messages), tools=border.tools(env), max_turns=border.turns(env))


def _diverged(held: Episode, number: int) -> ReplayDiverged:
    where = f"action {number} of {len(held.log)}" if number else "reset"
    return ReplayDiverged(
        f"task {held.task.id}: replayed for a fork, the world is another one after {where} than when it was first "
        "played: make it depend on its task, its seed and its actions alone, or set fork=Fork.NONE"
    )
