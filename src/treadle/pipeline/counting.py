"""The counting check: look ahead past slow tickets, and still never train one that is too stale.

In strict order ticket t belongs to batch t // B, and starts at most `lag` batches before it. Here it may be passed over
a little: it is *due* at batch t // B + (S - lag), where S is `max_staleness`, so that it is at most S versions old. A
batch takes B settled tickets. Taking a set of them as batch k is safe when what stays behind can still make its way:

    for every j >= 0:  of the outstanding tickets that stay, at most j * B are due at batch k + j or before

For j = 0 it says that whatever is due now is in this batch: the update waits for it. The check is enough, because
tickets that pass it can be taken in ticket order by the batches to come, and whoever starts later is due later. So for
all latencies staleness is at most S, nothing is dropped for its age, and no ticket is passed over by more than S - lag
batches. With S = lag that is strict ticket order. Within the freedom that S > lag gives, an order prefers some tickets;
it cannot break the bound.

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
    """The first B of `settled`, in the order given, that leave nothing behind that could become too stale; or None.

    `now` is the number of the batch that is gathered. The check counts every ticket in the classes of at most S
    further batches, so it costs O(tickets * S).
    """
    size, classes = bounds.groups_per_update, bounds.max_staleness + 1
    ready, running = [0] * classes, [0] * classes
    for counts, entries in ((ready, settled), (running, unsettled)):
        for entry in entries:
            for j in range(_left(entry, now, bounds), classes):
                counts[j] += 1
    needed = [max(0, ready[j] + running[j] - j * size) for j in range(classes)]
    if len(settled) < size or any(needed[j] > min(ready[j], size) for j in range(classes)):
        return None
    chosen: list[int] = []
    for entry in settled:
        left = _left(entry, now, bounds)
        after = [need - (j >= left) for j, need in enumerate(needed)]
        if max(after) <= size - len(chosen) - 1:
            needed = after
            chosen.append(entry.ticket)
            if len(chosen) == size:
                return tuple(sorted(chosen))
    raise AssertionError(f"the counting check let a batch through that cannot be filled: {len(chosen)} of {size}")


def _left(entry: Entry, now: int, bounds: Bounds) -> int:
    """Batches after this one that may still take the ticket; 0 when it is due now."""
    return max(0, due(entry, bounds) - now)


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

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the bounds only."""
        return Counting(bounds=bounds)
