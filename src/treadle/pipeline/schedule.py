"""Schedules: which ticket starts, which goes first, which tickets make the next batch, which are given up.

The default is strict ticket order: batch k is made of tickets k*B .. k*B+B-1, whatever finished first. A ticket may
start when its batch is at most `lag` batches away, so between its admission and its update at most `lag` versions
pass, whatever the latencies are: the bound needs no dropping and does not select against long rollouts. A dropped
ticket keeps its permit until its batch is taken; were it given back at once, a later ticket could start too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from treadle.pipeline.board import Board


class Schedule(Protocol):
    """Reads the board, never writes it. Permits bound it from outside."""

    def admit(self, board: Board) -> bool:
        """Whether `board.next_ticket` may start now."""
        ...

    def priority(self, board: Board, ticket: int) -> int:
        """What the engine is told; smaller is sooner."""
        ...

    def select(self, board: Board) -> tuple[int, ...] | None:
        """Tickets of the next batch, all settled; None to wait. Only a batch gives permits back, dropped ones' too."""
        ...

    def evict(self, board: Board) -> tuple[int, ...]:
        """Tickets that are given up: what still runs of them is cancelled, and they are settled as dropped."""
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
        first = board.batches * self.groups_per_update
        wanted = range(first, first + self.groups_per_update)
        if all(ticket in board.entries and board.entries[ticket].settled for ticket in wanted):
            return tuple(wanted)
        return None

    def evict(self, board: Board) -> tuple[int, ...]:
        """Nothing is ever given up."""
        return ()


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

    def evict(self, board: Board) -> tuple[int, ...]:
        """As the schedule says."""
        return self.schedule.evict(board)
