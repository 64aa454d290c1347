"""The evaluate pump: generated -> ready | dropped(reason).

Waits for: a generated group (the generate pump wakes it). Wakes: the update pump, when a group is settled. The rollouts
were scored while their environments were open; what remains is to judge whether the group is worth an update.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.filters import LOST, Filter, judge
from treadle.pipeline.ledger import Ledger


class EvaluatePump:
    """Runs the filters over generated groups, in ticket order among those that wait."""

    def __init__(self, config: PipelineConfig, *, filters: Sequence[Filter], ledger: Ledger) -> None:
        self.config = config
        self.filters = tuple(filters)
        self.ledger = ledger

    async def run(self, board: Board) -> None:
        """Judge groups until the run is cancelled or every ticket was judged."""
        while board.batches < self.config.updates:
            await board.until(
                lambda: board.counts[State.GENERATED] > 0 or board.batches >= self.config.updates,
                what="evaluate pump waits for a generated group", stall_s=self.config.follow_s,
            )
            for entry in self._waiting(board):
                found = judge(self.filters, entry.group)
                entry.view, entry.masked = found.group, found.masked
                reason = self._late(board, entry, found.reason)
                board.move(entry, State.READY if reason is None else State.DROPPED, reason=reason or "")
                self.ledger.judged(entry)

    @staticmethod
    def _late(board: Board, entry: Entry, reason: str | None) -> str | None:
        """The reason, or `late` for a group that was given up and has too few rollouts without who was missing."""
        return "late" if reason in LOST and entry.ticket in board.late else reason

    @staticmethod
    def _waiting(board: Board) -> list[Entry]:
        return [entry for entry in board.entries.values() if entry.state is State.GENERATED]
