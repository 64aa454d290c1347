"""Dynamic sampling: a batch goes on taking tickets until B groups train (2503.14476).

Groups with nothing to compare shrink an update. Here the next tickets take the place of dropped ones: a batch is the
next tickets in order up to the B-th that trains, or `most` * B of them, however few of them train.

Order and pace are those of `TicketOrder`, counted in tickets that live, which are those that were not dropped:

    a ticket starts when fewer than (lag + 1) * B live ones are ahead of it
    a full batch takes the first B live ones, and the dropped ones between them

So every version takes B live tickets from ahead of a ticket, and it is trained within `lag` versions. A dropped one
keeps its permit until its batch is taken, which delays nobody: there are (lag + `most`) * B permits. A short batch
would break this, because the version goes on though fewer tickets are gone. It trains only if every live ticket that
stays can still be trained in time:

    version + 1 + (live ones ahead of it) // B - (version it was admitted at) <= max_staleness

Else it takes the dropped tickets alone, an empty batch that makes no version, and what is ready waits for the next one.
At lag 0 nothing stays, and every short batch trains.

What it costs: time, and a bias towards middling tasks like that of the filter itself. Which tickets a batch takes is
told to the ledger, so a run that goes on takes the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.schedule import Bounds, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """The next tickets in order, until B of them train or `most` * B were taken."""

    bounds: Bounds
    most: int

    def admit(self, board: Board) -> bool:
        """Whether few enough live tickets are ahead, once the batch that could be taken now is gone."""
        size, ahead = self.bounds.groups_per_update, self._ahead(board)
        if len(board.entries) >= (ahead + self.most) * size:
            return False
        batch = self.select(board) or ()
        taken = [board.entries[ticket] for ticket in batch]
        stays = len(_live(board.entries.values())) - len(_live(taken))
        return stays < (ahead if _live(taken) else ahead + 1) * size

    def priority(self, board: Board, ticket: int) -> int:
        """Earlier tickets first: they block the next batch."""
        return ticket

    def select(self, board: Board) -> tuple[int, ...] | None:
        """The first tickets, all settled, up to the B-th that trains; fewer trains when `most` * B were looked at."""
        size = self.bounds.groups_per_update
        head: list[Entry] = []
        live = 0
        for entry in board.entries.values():
            if not entry.settled:
                return None
            head.append(entry)
            live += entry.state is not State.DROPPED
            if live == size:
                return _tickets(head)
            if len(head) == self.most * size:
                return self._short(board, head)
        return None

    def missing(self, board: Board) -> tuple[int, ...]:
        """What still runs before the B-th ticket that trains or may yet, within the most that a batch takes."""
        size = self.bounds.groups_per_update
        lacking: list[Entry] = []
        live = 0
        for looked, entry in enumerate(board.entries.values()):
            if live == size or looked == self.most * size:
                break
            live += entry.state is not State.DROPPED
            if not entry.settled:
                lacking.append(entry)
        return _tickets(lacking)

    def evict(self, board: Board) -> tuple[int, ...]:
        """Nothing is ever given up."""
        return ()

    def closed(self, entry: Entry) -> None:
        """Nothing is learned."""

    def _ahead(self, board: Board) -> int:
        """Batches that admission runs ahead: none beyond the last one."""
        updates = self.bounds.updates
        return self.bounds.lag if updates is None else min(self.bounds.lag, max(updates - board.batches - 1, 0))

    def _short(self, board: Board, head: Sequence[Entry]) -> tuple[int, ...]:
        """All of a short batch where nothing that stays becomes too old by it; else what was dropped."""
        held = {entry.ticket for entry in head}
        stays = _live(entry for entry in board.entries.values() if entry.ticket not in held)
        size, most = self.bounds.groups_per_update, self.bounds.max_staleness
        late = any(
            board.version + 1 + place // size - entry.group.key.admitted_version > most
            for place, entry in enumerate(stays)
        )
        return _tickets(entry for entry in head if not late or entry.state is State.DROPPED)


def _live(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.state is not State.DROPPED]


def _tickets(entries: Iterable[Entry]) -> tuple[int, ...]:
    return tuple(entry.ticket for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilFull:
    """Batches in which B groups train. Raises ConfigError naming the key."""

    name: ClassVar[str] = "dynamic"

    most: int = 3
    """Most tickets of a batch, as a multiple of `groups_per_update`."""

    def __post_init__(self) -> None:
        if self.most < 2:
            raise ConfigError(f"schedule.most: got {self.most}, expected >= 2: one replaces nothing, as `tickets` does")

    def begin(self, bounds: Bounds, *, rewards: Rewards) -> Schedule:
        """Needs the bounds only."""
        return Refilled(bounds=bounds, most=self.most)
