"""The counting check: look ahead past slow tickets, and still never train one that is too stale.

In strict order ticket t belongs to batch t // B, and starts at most `lag` batches before it. Here it may be passed over
a little: it is *due* at batch t // B + (S - lag), where S is `max_staleness`, so that it is at most S versions old. A
batch takes B settled tickets. Taking a set of them as batch k is safe when what stays behind can still make its way:

    for every j >= 0:  of the tickets that stay, at most j * B are due at batch k + j or before

Only B tickets are due at any one batch, so it is enough to look at j = 0: whatever is due now is in this batch, and the
update waits for it. Then the check holds for the next batches, too. So for all latencies staleness is at most S,
nothing is dropped for its age, and no ticket is passed over by more than S - lag batches. With S = lag that is strict
ticket order. Within the freedom that S > lag gives, an order prefers some tickets; it cannot break the bound.

Under `on_stale` drop and mask nobody waits: the next batch is any B settled tickets, oldest first. `drop` gives up a
ticket that is still running when its last batch has gone; `mask` goes on with it and trains what is young enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.limits import Rewards
from treadle.pipeline.board import Board, Entry
from treadle.pipeline.schedule import Bounds, Schedule


def choose(
    settled: Sequence[Entry], unsettled: Iterable[Entry], *, now: int, bounds: Bounds
) -> tuple[int, ...] | None:
    """What is due at batch `now` and the first of the other settled ones, B together, in ticket order.

    None when there are not so many, or when something is due that is not settled.
    """
    if len(settled) < bounds.groups_per_update or any(due(entry, bounds) <= now for entry in unsettled):
        return None
    first = sorted(settled, key=lambda entry: due(entry, bounds) > now)  # stable: the order given is kept among equals
    return tuple(sorted(entry.ticket for entry in first[: bounds.groups_per_update]))


def due(entry: Entry, bounds: Bounds) -> int:
    """The last batch that may take the ticket."""
    return entry.ticket // bounds.groups_per_update + bounds.max_staleness - bounds.lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Ticket order with the counting check. Other orders override `rank` and `priority`."""

    bounds: Bounds

    def admit(self, board: Board) -> bool:
        """As far ahead as the pace allows."""
        return self.bounds.may_start(board)

    def priority(self, board: Board, ticket: int) -> int:
        """Earlier tickets first: they are due soonest."""
        return ticket

    def rank(self, entry: Entry) -> float:
        """Smaller is taken first, where the check leaves a choice."""
        return entry.ticket

    def select(self, board: Board) -> tuple[int, ...] | None:
        """The first B by rank that the counting check lets go."""
        if board.settled < self.bounds.groups_per_update:
            return None
        settled = sorted((e for e in board.entries.values() if e.settled), key=lambda e: (self.rank(e), e.ticket))
        if self.bounds.on_stale != "wait":
            return tuple(sorted(entry.ticket for entry in settled)[: self.bounds.groups_per_update])
        running = [entry for entry in board.entries.values() if not entry.settled]
        return choose(settled, running, now=board.batches, bounds=self.bounds)

    def missing(self, board: Board) -> tuple[int, ...]:
        """What is due and still runs, and beyond that as many of the oldest running ones as a batch lacks."""
        running = [entry for entry in board.entries.values() if not entry.settled]
        waits = self.bounds.on_stale == "wait"
        overdue = sum(due(entry, self.bounds) <= board.batches for entry in running) if waits else 0
        lacking = max(overdue, self.bounds.groups_per_update - board.settled, 0)
        return tuple(entry.ticket for entry in running[:lacking])

    def evict(self, board: Board) -> tuple[int, ...]:
        """Under `drop`, what still runs though its last batch has gone."""
        if self.bounds.on_stale != "drop":
            return ()
        return tuple(
            e.ticket for e in board.entries.values() if not e.settled and due(e, self.bounds) < board.batches
        )

    def closed(self, entry: Entry) -> None:
        """Nothing is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """Earlier tickets first, looking ahead as far as the counting check allows."""

    name: ClassVar[str] = "tickets"
    most: ClassVar[int] = 1

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the bounds only."""
        return Counting(bounds=bounds)
