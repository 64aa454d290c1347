"""Other orders under the counting check: what to prefer where the bound leaves a choice.

    freshest      ready groups with the youngest tokens first: least off-policy data
    shortest      the engine plays first what is expected to end soonest: finished groups come early
    learnability  ready groups whose rollouts differ most first: most signal for an update

None of them starves anybody. A batch must contain whatever is due, so a ticket is passed over for at most
`max_staleness` - `lag` batches. What the engine is told is bounded too: `shortest` moves a ticket by less than the
tickets of one batch, so only tickets admitted within one batch of it can go before it. Its estimates are not kept: a
run that goes on begins them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from treadle.agents.limits import Rewards
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.counting import Counting, InOrder
from treadle.pipeline.dynamic import UntilFull
from treadle.pipeline.filters import compared
from treadle.pipeline.redundant import Redundant
from treadle.pipeline.schedule import Bounds, Schedule, SchedulePlan, Strictly

FORGET = 0.9
"""What an estimate of a family's turns is multiplied with at each new group of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshestFirst(Counting):
    """Young groups first; dropped ones, which train nothing, last."""

    def rank(self, entry: Entry) -> float:
        """By the oldest version that its tokens depend on, newest first."""
        if entry.state is State.DROPPED:
            return 0.0
        oldest = entry.trains.oldest_version
        return -float(entry.group.key.admitted_version if oldest is None else oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnability(Counting):
    """Groups with the largest variance of raw rewards first."""

    rewards: Rewards

    def rank(self, entry: Entry) -> float:
        """Minus the variance; 0 for a group that is dropped or has nothing to compare."""
        if entry.state is State.DROPPED:
            return 0.0
        values = compared(entry.trains, self.rewards)
        if len(values) < 2:
            return 0.0
        mean = sum(values) / len(values)
        return -sum((value - mean) ** 2 for value in values) / len(values)


@dataclass(slots=True)
class _Turns:
    """Turns of a family's groups, older ones counting less."""

    total: float = 0.0
    groups: float = 0.0

    def add(self, turns: int) -> None:
        """Count one more group."""
        self.total = FORGET * self.total + turns
        self.groups = FORGET * self.groups + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemainder(Counting):
    """The engine hears first of groups with few turns left, by a running estimate for each family."""

    families: dict[str, _Turns] = field(default_factory=dict)
    """What closed groups of each family took."""

    def priority(self, board: Board, ticket: int) -> int:
        """The ticket, moved back by up to a batch's worth of tickets: 0 for nothing left, most for the longest family.

        A family that was never seen counts as the longest.
        """
        entry = board.entries[ticket]
        means = {name: seen.total / seen.groups for name, seen in self.families.items()}
        longest = max(means.values(), default=0.0)
        if longest <= 0:
            return ticket
        done = sum(segment.is_action for segment in entry.group.segments.values())
        left = max(0.0, means.get(entry.task.family, longest) - done)
        return ticket + int(min(1.0, left / longest) * (self.bounds.groups_per_update - 1))

    def closed(self, entry: Entry) -> None:
        """Count its turns."""
        turns = sum(segment.is_action for segment in entry.group.segments.values())
        self.families.setdefault(entry.task.family, _Turns()).add(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshest:
    """Youngest tokens first."""

    name: ClassVar[str] = "freshest"
    most: ClassVar[int] = 1

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the bounds only."""
        return FreshestFirst(bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortest:
    """Shortest expected remainder first."""

    name: ClassVar[str] = "shortest"
    most: ClassVar[int] = 1

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """No family is known yet."""
        return ShortestRemainder(bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MostToLearn:
    """Largest variance of rewards first."""

    name: ClassVar[str] = "learnability"
    most: ClassVar[int] = 1

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Reads raw rewards."""
        return Learnability(bounds=bounds, rewards=rewards)


SCHEDULES: Mapping[str, type[SchedulePlan]] = {
    kind.name: kind for kind in (InOrder, Strictly, Freshest, Shortest, MostToLearn, UntilFull, Redundant)
}
