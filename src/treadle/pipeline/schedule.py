"""Schedules: which ticket starts, which goes first, which tickets make the next batch, which are given up.

A schedule is one small object that reads the board. What a recipe says about it is a plan (`pipeline.schedule`, by
name); the plan makes the object when a loop begins.

`TicketOrder` is the plainest: batch k is made of tickets k*B .. k*B+B-1, whatever finished first. A ticket may start
when its batch is at most `lag` batches away, so between its admission and its update at most `lag` versions pass,
whatever the latencies are: the bound needs no dropping and does not select against long rollouts. A dropped ticket
keeps its permit until its batch is taken; were it given back at once, a later ticket could start too early.
`treadle.pipeline.counting` looks further ahead under the same bound; `treadle.pipeline.dynamic` replaces what was
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from treadle.agents.limits import Rewards
from treadle.pipeline.board import Board, Entry

OnStale = Literal["wait", "drop", "mask"]
"""What becomes of a ticket that cannot be trained within the bound: the update waits for it before that happens; or it
is given up; or it trains without the tokens that are too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What every schedule has to keep to."""

    groups_per_update: int
    lag: int
    """Batches that admission may run ahead."""
    max_staleness: int
    """Batches that may pass between a ticket's admission and its own batch; at least `lag`."""
    on_stale: OnStale = "wait"
    updates: int | None = None
    """Batches of the whole run; None when it has no end."""

    def may_start(self, board: Board) -> bool:
        """Whether the next ticket is at most `lag` batches ahead of the one that is gathered now."""
        return board.next_ticket < (board.batches + self.lag + 1) * self.groups_per_update


class Schedule(Protocol):
    """Reads the board, never writes it. Permits bound it from outside."""

    def admit(self, board: Board) -> bool:
        """Whether `board.next_ticket` may start now."""
        ...

    def priority(self, board: Board, ticket: int) -> int:
        """What the engine is told; smaller is sooner. Asked again at every turn."""
        ...

    def select(self, board: Board) -> tuple[int, ...] | None:
        """Tickets of the next batch, all settled; None to wait. Only a batch gives permits back, dropped ones' too."""
        ...

    def missing(self, board: Board) -> tuple[int, ...]:
        """Tickets, not settled, that the next batch waits for; empty when it waits for none that was admitted."""
        ...

    def evict(self, board: Board) -> tuple[int, ...]:
        """Tickets that are given up: what still runs of them is cancelled, and they are settled as dropped."""
        ...

    def closed(self, entry: Entry) -> None:
        """Hear of a ticket whose batch was taken, in ticket order: what estimates are made of."""
        ...


class SchedulePlan(Protocol):
    """What a recipe says about the schedule."""

    name: ClassVar[str]

    @property
    def most(self) -> int:
        """Most tickets of a batch, as a multiple of `groups_per_update`: above 1 where dropped ones are replaced."""
        ...

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """A schedule that has seen nothing yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketOrder:
    """Batches in strict ticket order."""

    groups_per_update: int
    lag: int

    def admit(self, board: Board) -> bool:
        """Whether the ticket's batch is at most `lag` batches ahead."""
        return board.next_ticket < (board.batches + self.lag + 1) * self.groups_per_update

    def priority(self, board: Board, ticket: int) -> int:
        """Earlier tickets first: they block the next batch."""
        return ticket

    def select(self, board: Board) -> tuple[int, ...] | None:
        """The next B tickets, once all of them are settled."""
        if board.settled < self.groups_per_update:
            return None
        wanted = self._next(board)
        if all(ticket in board.entries and board.entries[ticket].settled for ticket in wanted):
            return tuple(wanted)
        return None

    def missing(self, board: Board) -> tuple[int, ...]:
        """Those of the next B that still run."""
        held = board.entries
        return tuple(ticket for ticket in self._next(board) if ticket in held and not held[ticket].settled)

    def evict(self, board: Board) -> tuple[int, ...]:
        """Nothing is ever given up."""
        return ()

    def closed(self, entry: Entry) -> None:
        """Nothing is learned."""

    def _next(self, board: Board) -> range:
        first = board.batches * self.groups_per_update
        return range(first, first + self.groups_per_update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictly:
    """Batch k is tickets k*B .. k*B+B-1."""

    name: ClassVar[str] = "strict"
    most: ClassVar[int] = 1

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the pace only."""
        return TicketOrder(groups_per_update=bounds.groups_per_update, lag=bounds.lag)

@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Takes the batches that the ledger knows as they were taken; for the rest it is another schedule."""

    schedule: Schedule
    batch: Callable[[int], tuple[int, ...] | None]
    """The tickets of an update by its number; None when no ledger knows them."""

    def admit(self, board: Board) -> bool:
        """As the schedule says."""
        return self.schedule.admit(board)

    def priority(self, board: Board, ticket: int) -> int:
        """As the schedule says."""
        return self.schedule.priority(board, ticket)

    def select(self, board: Board) -> tuple[int, ...] | None:
        """The recorded batch, once all of it is settled; else as the schedule says."""
        wanted = self.batch(board.batches + 1)
        if wanted is None:
            return self.schedule.select(board)
        settled = all(ticket in board.entries and board.entries[ticket].settled for ticket in wanted)
        return wanted if settled else None

    def missing(self, board: Board) -> tuple[int, ...]:
        """As the schedule says; nothing of a recorded batch, which is taken as it was."""
        return () if self.batch(board.batches + 1) is not None else self.schedule.missing(board)

    def evict(self, board: Board) -> tuple[int, ...]:
        """As the schedule says, once all recorded batches are taken: what was given up before them is known."""
        return () if self.batch(board.batches + 1) is not None else self.schedule.evict(board)

    def closed(self, entry: Entry) -> None:
        """Let the schedule hear."""
        self.schedule.closed(entry)
