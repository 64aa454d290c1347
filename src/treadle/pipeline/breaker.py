"""The circuit breaker: kinds of task whose environment only fails get no new tickets for a while.

    closed --k failures in a row--> open --cool-down--> a canary ticket --a rollout that worked--> closed
                                     ^-------------------- it failed too ----'

A kind is a task family. It stands between the curriculum and the generate pump: a task of an open kind is passed over
and the next one is asked for. Failures are those of environment, machinery and grader that were left after all
retries; what the policy does wrong is no failure. Like the curriculum it learns when a batch is closed, in ticket
order, and counts its cool-down in closed tickets, so that the same results give the same tasks. When every kind that it
looks at is open, a task is played all the same: a run in which everything fails stops for that reason, elsewhere.

Its state holds no canary: one that was out when a run was interrupted is taken for one again when its ticket is
admitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from treadle.core.events import Value
from treadle.core.outcome import Status
from treadle.core.ports import Statistics
from treadle.envs.task import Task
from treadle.pipeline.curriculum import Choice, Curriculum, Place
from treadle.trajectory.group import Group, Rollout

MOST_PASSED = 64
"""Tasks of open kinds that one ticket may pass over."""


@dataclass(slots=True, kw_only=True)
class Kind:
    """What is known of one family."""

    failures: int = 0
    """In a row, up to now."""
    opened: int | None = None
    """Tickets that had been closed when it was opened, or its last canary failed; None while it is closed."""
    canary: str | None = None
    """Id of the task that tries it; None while none does."""
    message: str = ""
    """Of the last failure."""


@dataclass(slots=True, kw_only=True)
class Breaker:
    """A curriculum that passes over kinds which only fail. Satisfies `Curriculum`."""

    inner: Curriculum
    failures: int
    """Failed rollouts in a row that open a kind."""
    cool_down: int
    """Tickets that close before a canary is tried."""
    tell: Callable[[str, Mapping[str, Value]], None]
    """Hears `breaker.opened` and `breaker.closed`."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    cursor: int = 0
    """The inner curriculum's, after its last choice: what it is told is the ticket, for no number comes twice."""
    closed: int = 0
    """Tickets that were closed."""

    def choose(self, ticket: int) -> Choice:
        """The next task of a kind that is closed, or due for a canary."""
        choice, passed = self._next(), 0
        while not self._may_start(choice.task) and passed < MOST_PASSED:
            choice, passed = self._next(), passed + 1
        return replace(choice, place=replace(choice.place, skipped=choice.skipped + passed))

    def again(self, place: Place) -> Choice:
        """The choice that fell there; it is its kind's canary if it can only have been one."""
        choice = self.inner.again(place)
        self.cursor = max(self.cursor, place.cursor)
        self._may_start(choice.task)
        return choice

    def learn(self, task: Task, group: Group) -> None:
        """Count what the group's rollouts came to, and open or close its kind."""
        self.inner.learn(task, group)
        self.closed += 1
        kind = self.kinds.setdefault(task.family, Kind())
        worked = False
        for rollout in _last_attempts(group):
            assert rollout.outcome is not None
            if rollout.outcome.failed:
                kind.failures += 1
                kind.message = rollout.outcome.message or rollout.outcome.type
            elif rollout.outcome.status is not Status.CANCELLED:
                kind.failures, worked = 0, True
        if kind.canary == task.id:
            kind.canary = None
            kind.opened = self.closed
        if kind.opened is not None and worked:
            kind.opened, kind.failures = None, 0
            self.tell("breaker.closed", {"family": task.family, "group": group.key.id})
        elif kind.opened is None and kind.failures >= self.failures:
            kind.opened = self.closed
            self.tell("breaker.opened", {
                "family": task.family, "group": group.key.id, "failures": kind.failures, "message": kind.message,
                "cool_down_tickets": self.cool_down,
            })

    def statistics(self) -> Statistics:
        """The inner curriculum's, and how many kinds are open when any is."""
        count = sum(kind.opened is not None for kind in self.kinds.values())
        return Statistics(values={**self.inner.statistics().values, **({"breaker.open": count} if count else {})})

    def state(self) -> dict[str, object]:
        """Counters, kinds, and the inner curriculum's."""
        rows = [[name, kind.failures, kind.opened, kind.message] for name, kind in self.kinds.items()]
        return {"cursor": self.cursor, "closed": self.closed, "kinds": rows, "inner": self.inner.state()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on from what `state` gave."""
        match state:
            case {"cursor": int(cursor), "closed": int(closed), "kinds": list(rows), "inner": dict(inner)}:
                self.inner.restore(inner)
                self.cursor, self.closed = cursor, closed
                self.kinds = {
                    name: Kind(failures=failures, opened=opened, message=message)
                    for name, failures, opened, message in rows
                }
            case _:
                raise ValueError(f"breaker state: got {dict(state)!r:.80}, expected counters, kinds and inner")

    def _next(self) -> Choice:
        choice = self.inner.choose(self.cursor)
        self.cursor = choice.place.cursor
        return choice

    def _may_start(self, task: Task) -> bool:
        """Whether its kind is closed; or else due for a canary, which it then is."""
        kind = self.kinds.get(task.family)
        if kind is None or kind.opened is None:
            return True
        if kind.canary is not None or self.closed < kind.opened + self.cool_down:
            return False
        kind.canary = task.id
        return True


def _last_attempts(group: Group) -> list[Rollout]:
    """What each member of a group came to, in order; those that never ended are left out."""
    last = {r.index: r for r in sorted(group.rollouts.values(), key=lambda r: (r.index, r.attempt)) if r.outcome}
    return [last[index] for index in sorted(last)]
