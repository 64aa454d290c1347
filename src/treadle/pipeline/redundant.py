"""Redundant groups: more tickets than an update needs, and the slow ones are given up.

The slowest group of a batch sets its pace, and agents have long tails: one tool that hangs, one rollout that rambles.
Here batch k is tickets k*(B+s) .. k*(B+s)+B+s-1. As soon as B of them are ready to train, those that still run are
cancelled, each once, and dropped, reason `cancelled`; whatever ended in the same moment trains too. Where fewer than B
come to train, the batch waits for all of them, and the spare tickets replace what was dropped.

Order and pace are those of `TicketOrder` with B+s tickets to a batch, so every ticket is trained or dropped within
`lag` batches of its admission. What it costs: the work of the cancelled groups, and a bias towards groups that end
soon, which is why it is never a default. Which tickets were given up is in the ledger, so a run that goes on gives up
the same ones; it depends on who was faster, so deterministic mode refuses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.schedule import Bounds, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReady:
    """The first B of B + s tickets that are ready."""

    bounds: Bounds
    spare: int

    def admit(self, board: Board) -> bool:
        """Whether the ticket's batch is at most `lag` batches ahead, and is one of the run."""
        size, updates = self._size, self.bounds.updates
        ahead = board.batches + self.bounds.lag + 1
        return board.next_ticket < (ahead if updates is None else min(ahead, updates)) * size

    def priority(self, board: Board, ticket: int) -> int:
        """Earlier tickets first: they block the next batch."""
        return ticket

    def select(self, board: Board) -> tuple[int, ...] | None:
        """The next B + s tickets, once all of them are settled: the slow ones because they were given up."""
        entries = self._next(board)
        if len(entries) < self._size or not all(entry.settled for entry in entries):
            return None
        return tuple(entry.ticket for entry in entries)

    def missing(self, board: Board) -> tuple[int, ...]:
        """Those of the next B + s that still run."""
        return tuple(entry.ticket for entry in self._next(board) if not entry.settled)

    def evict(self, board: Board) -> tuple[int, ...]:
        """What still runs of the next B + s tickets when B are ready."""
        entries = self._next(board)
        if sum(entry.state is State.READY for entry in entries) < self.bounds.groups_per_update:
            return ()
        return tuple(entry.ticket for entry in entries if not entry.settled)

    def closed(self, entry: Entry) -> None:
        """Nothing is learned."""

    @property
    def _size(self) -> int:
        return self.bounds.groups_per_update + self.spare

    def _next(self, board: Board) -> list[Entry]:
        """Those of the next batch that were admitted."""
        first = board.batches * self._size
        return [board.entries[ticket] for ticket in range(first, first + self._size) if ticket in board.entries]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """Groups to spare in every batch. Raises ConfigError naming the key."""

    name: ClassVar[str] = "redundant"
    most: ClassVar[int] = 2

    share: float = 0.125
    """Tickets of a batch beyond `groups_per_update`, as a share of it, rounded up; at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"schedule.share: got {self.share}, expected a share in (0, 1]; `schedule=tickets` has none to spare"
            )

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the bounds only."""
        return FirstReady(bounds=bounds, spare=math.ceil(self.share * bounds.groups_per_update))
