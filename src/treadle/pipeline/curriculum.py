"""The curriculum: which task a ticket plays.

    choose(ticket) -> Choice      when the generate pump admits a ticket
    again(place) -> Choice        instead, when the ledger says what was chosen for it before the run was interrupted
    learn(task, group)            when the update pump closes a batch: every ticket of it, in ticket order, dropped
                                  ones too, just before its permits are given back

So what a choice knows does not depend on who finished first: a ticket that is admitted after n batches were taken knows
exactly those n batches. At lag 0 a ticket of batch k knows the batches before k, and the same seed gives the same
tasks; at lag L it knows those before k - L, and any that were taken before it was admitted. Rewards are read as the
world paid them, before any transform.

`TicketTasks` plays task t as ticket t. `DifficultyPools` walks the same order and passes over tasks of kinds that the
policy lately always or never solved: their groups would have nothing to compare, so they would be generated only to be
dropped. Tasks of one family and level are one pool. Its worth is the chance that its next group has something to
compare, given the rollouts that it remembers, times a power of the share that is still unsolved; a task is taken with
the chance (worth of its pool) / (worth of the best pool that was met). Pools of equal worth are thus taken in the
taskset's order, and a single pool is never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError
from treadle.core.ports import Statistics
from treadle.core.seeds import Stream
from treadle.envs.task import Task, Taskset, task_of
from treadle.pipeline.filters import compared
from treadle.trajectory.group import Group

MOST_SKIPS = 64
"""Tasks that one ticket may pass over; then the best of those it looked at is taken."""
HOPELESS, MASTERED = 0.05, 0.95
"""Success shares below and above which a pool is counted as such in statistics."""
PRIOR = 0.5
"""Rollouts solved, and as many unsolved, that a pool begins with (Jeffreys): most kinds are solved rarely or mostly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the taskset a choice fell: what the ledger keeps of it."""

    number: int
    """Of the task in its split."""
    cursor: int
    """Number of the task that the next choice looks at first."""
    skipped: int = 0
    """Tasks that were passed over to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A task for a ticket."""

    task: Task
    place: Place

    @property
    def skipped(self) -> int:
        """Tasks that were passed over to find it."""
        return self.place.skipped


class Curriculum(Protocol):
    """Chooses tasks. Owned by the controller's event loop; every method returns at once."""

    def choose(self, ticket: int) -> Choice:
        """The task of the next ticket; called once for each, in order. Raises EnvError as `task_of` does."""
        ...

    def again(self, place: Place) -> Choice:
        """The choice that fell there, and go on behind it."""
        ...

    def learn(self, task: Task, group: Group) -> None:
        """Take what came of a task."""
        ...

    def statistics(self) -> Statistics:
        """What every update reports."""
        ...

    def state(self) -> dict[str, object]:
        """All that `choose` depends on, as plain JSON values."""
        ...

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on from what `state` gave. Raises ValueError for anything else."""
        ...


class CurriculumPlan(Protocol):
    """What a recipe says about the curriculum."""

    name: ClassVar[str]

    def begin(self, taskset: Taskset, *, group_size: int, rewards: Rewards, seed: Stream) -> Curriculum:
        """A curriculum that has learned nothing yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InTicketOrder:
    """Task t is ticket t's."""

    name: ClassVar[str] = "tickets"

    def begin(self, taskset: Taskset, *, group_size: int, rewards: Rewards, seed: Stream) -> Curriculum:
        """Needs the taskset only."""
        return TicketTasks(taskset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDifficulty:
    """Tasks of kinds that the policy solves sometimes. Raises ConfigError naming the key."""

    name: ClassVar[str] = "pools"

    memory: float = 0.7
    """What a pool's counts are multiplied with at each new group of it; 1 never forgets."""
    floor: float = 0.1
    """Least worth of a pool: none is ever given up."""
    headroom: float = 0.0
    """Power of the unsolved share in a pool's worth. 0 asks only whether a group would compare; 1 also asks how much is
    left to win there, so that kinds that are solved one time in twenty come before those solved nineteen times."""

    def __post_init__(self) -> None:
        if not 0 <= self.memory <= 1:
            raise ConfigError(f"curriculum.memory: got {self.memory}, expected a factor in [0, 1]")
        if not 0 < self.floor <= 1:
            raise ConfigError(f"curriculum.floor: got {self.floor}, expected a chance in (0, 1]")
        if not self.headroom >= 0:
            raise ConfigError(f"curriculum.headroom: got {self.headroom}, expected a power >= 0")

    def begin(self, taskset: Taskset, *, group_size: int, rewards: Rewards, seed: Stream) -> Curriculum:
        """No pool is known yet."""
        return DifficultyPools(self, taskset=taskset, group_size=group_size, rewards=rewards, seed=seed)


CURRICULA: Mapping[str, type[CurriculumPlan]] = {kind.name: kind for kind in (InTicketOrder, ByDifficulty)}


class TicketTasks:
    """Task number = ticket. Learns nothing."""

    def __init__(self, taskset: Taskset) -> None:
        self.taskset = taskset

    def choose(self, ticket: int) -> Choice:
        """Task number `ticket`; a finite split starts over when it is through."""
        return self.again(Place(number=ticket, cursor=ticket + 1))

    def again(self, place: Place) -> Choice:
        """The task of that number."""
        return Choice(task=task_of(self.taskset, "train", place.number), place=place)

    def learn(self, task: Task, group: Group) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Nothing to say."""
        return Statistics()

    def state(self) -> dict[str, object]:
        """Nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Nothing was kept."""
        if state:
            raise ValueError(f"curriculum state: got keys {sorted(state)}, expected none")


@dataclass(slots=True, kw_only=True)
class Pool:
    """What is remembered of the tasks of one family and level."""

    solved: float = 0.0
    """Sum of the raw rewards, each clipped to 0..1; older groups count less."""
    played: float = 0.0
    """Rollouts that ended validly; older groups count less."""

    def worth(self, group_size: int, headroom: float = 0.0) -> float:
        """Chance that so many further rollouts are neither all solved nor all unsolved (beta-binomial), times the
        expected unsolved share to the power of `headroom`."""
        yes, no = self.solved + PRIOR, self.played - self.solved + PRIOR
        mixed = max(0.0, 1 - _all(yes, no, group_size) - _all(no, yes, group_size))
        return mixed * math.pow(no / (yes + no), headroom)

    @property
    def kind(self) -> str:
        """`unplayed`, `hopeless`, `mixed` or `mastered`."""
        if not self.played:
            return "unplayed"
        share = self.solved / self.played
        return "hopeless" if share < HOPELESS else "mastered" if share > MASTERED else "mixed"


def _all(yes: float, no: float, times: int) -> float:
    """E[s^times] for s ~ Beta(yes, no): the product over draws of yes / (yes + no), with `yes` growing by one."""
    return math.prod((yes + i) / (yes + no + i) for i in range(times))


class DifficultyPools:
    """Passes over what lately had nothing to compare."""

    def __init__(
        self, config: ByDifficulty, *, taskset: Taskset, group_size: int, rewards: Rewards, seed: Stream
    ) -> None:
        self.config = config
        self.taskset = taskset
        self.group_size = group_size
        """Rollouts of a group."""
        self.rewards = rewards
        self.seed = seed
        """Look i of ticket t draws number i of ("curriculum", t)."""
        self.cursor = 0
        """Number of the next task to look at."""
        self.pools: dict[tuple[str, str], Pool] = {}
        """By family and level; those that were met so far."""

    def worth(self, pool: Pool) -> float:
        """What the pool's next group promises, at least the floor."""
        return max(self.config.floor, pool.worth(self.group_size, self.config.headroom))

    def choose(self, ticket: int) -> Choice:
        """The next task in the taskset's order that its draw lets through."""
        draws = self.seed.at("curriculum", ticket)
        best = max(map(self.worth, self.pools.values()), default=0.0)
        looked: list[tuple[float, int, Task]] = []
        for skipped in range(MOST_SKIPS + 1):
            number, task = self.cursor, self._look()
            worth = self.worth(self._pool(task))
            best = max(best, worth)
            looked.append((worth, number, task))
            if draws.uniform(skipped) * best < worth:
                break
        else:
            _, number, task = max(looked, key=lambda one: one[0])
        return Choice(task=task, place=Place(number=number, cursor=self.cursor, skipped=len(looked) - 1))

    def again(self, place: Place) -> Choice:
        """The task of that number; every pool up to the place's cursor was met."""
        while self.cursor < place.cursor:
            self._pool(self._look())
        return Choice(task=task_of(self.taskset, "train", place.number), place=place)

    def learn(self, task: Task, group: Group) -> None:
        """Count the group's valid rollouts; one without any says nothing about its pool."""
        values = compared(group, self.rewards)
        if not values:
            return
        pool, memory = self._pool(task), self.config.memory
        pool.solved = memory * pool.solved + sum(min(max(value, 0.0), 1.0) for value in values)
        pool.played = memory * pool.played + len(values)

    def statistics(self) -> Statistics:
        """How many pools of each kind were met."""
        kinds = [pool.kind for pool in self.pools.values()]
        names = ("unplayed", "hopeless", "mixed", "mastered")
        return Statistics(values={f"pools.{name}": kinds.count(name) for name in names})

    def state(self) -> dict[str, object]:
        """Cursor and pools."""
        return {
            "cursor": self.cursor,
            "pools": [[*key, pool.solved, pool.played] for key, pool in self.pools.items()],
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Cursor and pools."""
        match state:
            case {"cursor": int(cursor), "pools": list(pools)}:
                self.pools = dict(map(_row, pools))
                self.cursor = cursor
            case _:
                raise ValueError(f"curriculum state: got {dict(state)!r:.80}, expected a cursor and a list of pools")

    def _look(self) -> Task:
        task = task_of(self.taskset, "train", self.cursor)
        self.cursor += 1
        return task

    def _pool(self, task: Task) -> Pool:
        return self.pools.setdefault((task.family, task.level), Pool())


def _row(row: object) -> tuple[tuple[str, str], Pool]:
    match row:
        case [str(family), str(level), int() | float() as solved, int() | float() as played]:
            return (family, level), Pool(solved=solved, played=played)
    raise ValueError(f"curriculum state: got pool {row!r:.80}, expected family, level, solved and played")
