"""Playing one ticket: n rollouts of the same task at once, from the same start.

Every member plays until it has an attempt that did not fail, or its retry budget is spent; what the group holds
already, because its run was interrupted, counts as played. Failures of the environment and of the machinery have
budgets of their own; an attempt is a rollout of its own with its own sampling stream, and
it starts from the same env seed as its siblings: another start would not share their baseline. Members do not
know each other: whatever happens to one, the others play on.

With spare members more are started than are needed. When `size` of them have ended validly, those that still play are
cancelled, each once. That cuts off the slow tail, and it favours short rollouts: who is slow is left out of the
baseline and of the loss. So there are none by default.

With a branching policy the members are the chains of a tree, which `agents.tree` grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from treadle.agents.branching import Branching, Tally
from treadle.agents.leash import Leash
from treadle.agents.limits import RolloutLimits
from treadle.agents.player import Play, Priority, no_priority
from treadle.agents.tree import Tree
from treadle.core.outcome import Retry
from treadle.core.ports import Clock, Generate
from treadle.core.seeds import Stream
from treadle.envs.task import Task
from treadle.trajectory.group import Group, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How often one member of a group is played again after a failure."""

    infra: int = 2
    """After failures of the machinery."""
    env: int = 1
    """After failures of the environment's own code."""
    wait_s: float = 0.2
    """Seconds before an attempt after an infra failure; doubled each time."""

    def allows(self, rollout: Rollout, *, infra: int, env: int) -> bool:
        """Whether this ended rollout may be played again after so many failures of either kind."""
        assert rollout.outcome is not None
        if rollout.outcome.type == "PromptTooLong":  # the same prompt would come again
            return False
        retry = rollout.outcome.rule.retry
        return (retry is Retry.INFRA and infra <= self.infra) or (retry is Retry.RESET and env <= self.env)


class RolloutWatcher(Protocol):
    """Hears of every rollout that ended. Must return at once and must not raise."""

    def ended(self, group: Group, rollout: Rollout, task: Task, *, retried: bool) -> None:
        """Take one ended rollout; `retried` says that another attempt follows."""

    def branched(self, group: Group, tally: Tally, *, whole: bool) -> None:
        """Take what branching did in a group; `whole` says that it was played to its end. Once, if it branches."""


class NoWatcher:
    """Hears nothing."""

    def ended(self, group: Group, rollout: Rollout, task: Task, *, retried: bool) -> None:
        """Do nothing."""

    def branched(self, group: Group, tally: Tally, *, whole: bool) -> None:
        """Do nothing."""


@dataclass(slots=True, kw_only=True)
class _Race:
    """Who still plays of one group, and how many are wanted."""

    wanted: int
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def ended(self, rollout: Rollout) -> None:
        """Count a valid one; the last that was wanted cancels those that still play."""
        self.wanted -= rollout.trains
        if rollout.trains and self.wanted == 0:
            for task in self.tasks:
                if task is not asyncio.current_task():
                    task.cancel()


class Plays(Protocol):
    """Plays rollouts, many at once: `Player`, or a simulation of one."""

    @property
    def generate(self) -> Generate:
        """What it samples from."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that it waits on."""
        ...

    @property
    def limits(self) -> RolloutLimits:
        """What one rollout may cost."""
        ...

    async def play(self, group: Group, plan: Play) -> Rollout:
        """Play one attempt to its end and return it, ended. Raises nothing but CancelledError."""
        ...


class GroupPlayer:
    """Plays whole groups, many at once."""

    def __init__(
        self, player: Plays, *, size: int, retries: RetryBudget | None = None, seed: Stream,
        watcher: RolloutWatcher | None = None, spare: int = 0, branching: Branching | None = None,
    ) -> None:
        self.player = player
        self.size = size
        """Rollouts of a group."""
        self.spare = spare
        """Rollouts that are started beyond them."""
        self.retries = retries or RetryBudget()
        self.seed = seed
        """Root of all streams: ("ticket", t, "rollout", i, "attempt", a) samples, ("env", t) starts worlds."""
        self.watcher = watcher or NoWatcher()
        self.playing: dict[str, Leash] = {}
        """What is being played now, by rollout id."""
        self.branching = branching
        self._brancher = None if branching is None else branching.begin(size=size, limits=player.limits)
        """None where every member is played on its own."""
        assert not spare or self._brancher is None, "a tree has no spare members"

    @property
    def clock(self) -> Clock:
        """The clock that rollouts are played on."""
        return self.player.clock

    def made_since(self, moment: float) -> bool:
        """Whether somebody who plays now made a segment after this clock time."""
        return any(leash.made and leash.since > moment for leash in self.playing.values())

    async def play(
        self, group: Group, task: Task, *, priority: Priority = no_priority, max_turns: int | None = None
    ) -> Group:
        """Play all members to their ends, each with at most so many turns. Raises nothing but CancelledError."""
        plan = Play(
            task=task, index=0, priority=priority, max_turns=max_turns,
            env_seed=self.seed.at("env", group.key.ticket), sample_stream=self._stream(group, 0, 0),
        )
        try:
            await (self._members if self._brancher is None else self._tree)(group, plan)
        finally:
            self.player.generate.release(group.key.id)
        return group

    async def _members(self, group: Group, plan: Play) -> None:
        """Independent rollouts."""
        race = _Race(wanted=self.size - sum(rollout.trains for rollout in group.rollouts.values()))
        async with asyncio.TaskGroup() as members:
            for index in range(self.size + self.spare):
                play = self._runner(group, replace(plan, index=index), race)
                race.tasks.append(members.create_task(play, name=f"{group.key.id}.{index}"))

    async def _tree(self, group: Group, plan: Play) -> None:
        """A tree; one that the group holds already is whole."""
        if group.rollouts:
            return
        assert self.branching is not None
        assert self._brancher is not None
        bounds = [bound for bound in (self.player.limits.max_turns, plan.max_turns) if bound is not None]
        tree = Tree(
            group, plan, budget=self.branching.budget, size=self.size, limits=self.player.limits,
            plan=self._brancher.group(
                self.seed.at("ticket", group.key.ticket, "branching"), turns=min(bounds, default=None)
            ),
            member=lambda limb, payable: self._member(group, limb, payable),
        )
        whole = False
        try:
            await tree.play()
            whole = True
        finally:
            self.watcher.branched(group, tree.tally, whole=whole)

    async def _runner(self, group: Group, plan: Play, race: _Race) -> None:
        """A member of a race; one that is decided is not run."""
        if race.wanted > 0 and (ended := await self._member(group, plan)) is not None:
            race.ended(ended)

    def _stream(self, group: Group, index: int, attempt: int) -> Stream:
        return self.seed.at("ticket", group.key.ticket, "rollout", index, "attempt", attempt)

    async def _member(
        self, group: Group, plan: Play, payable: Callable[[], bool] = lambda: True
    ) -> Rollout | None:
        """Play a member until an attempt of it counts; its stream and attempt take the place of the plan's.

        The last attempt; None when there was nothing to play. `payable` is asked before each further one.
        """
        task, index = plan.task, plan.index
        before = [r for r in group.rollouts.values() if r.index == index]
        infra, env = _failures(before)
        if before and not self.retries.allows(before[-1], infra=infra, env=env):
            return None
        leash: Leash | None = None
        while True:
            leash = Leash.begin(self.clock, after=leash)
            attempt = infra + env
            rollout = await self._attempt(group, leash, replace(
                plan, attempt=attempt, sample_stream=self._stream(group, index, attempt), leash=leash,
            ))
            assert rollout.outcome is not None
            more = _failures([rollout])
            infra, env = infra + more[0], env + more[1]
            again = self.retries.allows(rollout, infra=infra, env=env) and payable()
            self.watcher.ended(group, rollout, task, retried=again)
            if not again:
                return rollout
            if rollout.outcome.rule.retry is Retry.INFRA:
                await self.player.clock.sleep(self.retries.wait_s * 2 ** (infra - 1))

    async def _attempt(self, group: Group, leash: Leash, plan: Play) -> Rollout:
        """One attempt, ended; when it is cancelled, that is told before the cancellation passes on."""
        rollout = f"{group.key.id}.{plan.index}.{plan.attempt}"
        self.playing[rollout] = leash
        try:
            return await self.player.play(group, plan)
        except asyncio.CancelledError:
            self.watcher.ended(group, group.rollouts[rollout], plan.task, retried=False)
            raise
        finally:
            del self.playing[rollout]


def _failures(rollouts: Sequence[Rollout]) -> tuple[int, int]:
    """How many ended rollouts count against the budget for machinery, and how many against that for environments."""
    ended = [r.outcome.rule.retry for r in rollouts if r.outcome is not None]
    return ended.count(Retry.INFRA), ended.count(Retry.RESET)
