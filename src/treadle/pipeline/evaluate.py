"""The evaluate pump: generated -> ready | dropped(reason).

Waits for: a generated group (the generate pump wakes it). Wakes: the update pump, when a group is settled. The rollouts
were scored while their environments were open; what remains is to judge whether the group is worth an update.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.filters import LOST, Filter, first_reason
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
                reason = self._reason(board, entry)
                board.move(entry, State.READY if reason is None else State.DROPPED, reason=reason or "")
                self.ledger.judged(entry)

    def _reason(self, board: Board, entry: Entry) -> str | None:
        """Why a group is dropped; None to keep it. One that was given up may have enough without who was missing."""
        reason = first_reason(self.filters, entry.group)
        return "late" if reason in LOST and entry.ticket in board.late else reason

    @staticmethod
    def _waiting(board: Board) -> list[Entry]:
        return [entry for entry in board.entries.values() if entry.state is State.GENERATED]
