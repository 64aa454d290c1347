"""The generate pump: permit -> ticket -> task -> group of rollouts.

Waits for: a free permit and the schedule's word (the update pump wakes it), then for room in the store (its writer
does). Wakes: the evaluate pump, when a group has been played. Every running group is a task of the pump's own
TaskGroup; cancelling the pump cancels them, and each rollout then closes its environment and ends as `cancelled`.

A ticket that was admitted before the run was interrupted is admitted again, as the ledger's past says: with the same
task, not before the version it was admitted at, and with what its group holds already.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from treadle.agents.group_player import GroupPlayer
from treadle.core.errors import ConfigError
from treadle.core.ports import Clock
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Choice, Curriculum
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Admission
from treadle.pipeline.permits import Permits
from treadle.pipeline.schedule import Schedule
from treadle.trajectory.group import Group, GroupKey, Sink

AGAIN_FIRST = 1_000_000
"""How much sooner the engine serves a group that was interrupted: its batch waited long enough."""


class Room(Protocol):
    """What takes the records of a run and may lag behind."""

    async def room(self) -> None:
        """Return when there is room for more. Raises DeadlineExceeded, StoreError."""
        ...


class GeneratePump:
    """Starts tickets as permits allow."""

    def __init__(
        self, config: PipelineConfig, *, curriculum: Curriculum, player: GroupPlayer, schedule: Schedule,
        ledger: Ledger, sink: Sink | None = None, store: Room | None = None,
    ) -> None:
        self.config = config
        self.curriculum = curriculum
        """Gives every ticket its task."""
        self.player = player
        self.schedule = schedule
        self.ledger = ledger
        self.past = ledger.past
        self.sink = sink
        self.store = store
        """Asked for room before a ticket starts; None has room always."""
        self._playing: dict[int, asyncio.Task[Group]] = {}
        """Groups in flight by ticket."""
        self._evicted: set[int] = set()
        self._recorded = {ticket for batch in self.past.batches.values() for ticket in batch}
        """Tickets of batches that were taken before the run was interrupted."""

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self.player.clock

    async def run(self, board: Board, permits: Permits) -> None:
        """Start every ticket of the run, then wait for the last group."""
        async with asyncio.TaskGroup() as groups:
            while board.next_ticket < self.config.tickets and not board.stopping:
                await board.until(
                    lambda: board.stopping or (permits.free > 0 and self.schedule.admit(board) and self._due(board)),
                    what=f"generate pump waits for a permit for ticket {board.next_ticket}",
                    stall_s=self.config.follow_s,
                )
                if self.store is not None:
                    await self.store.room()
                if board.stopping:
                    return
                entry = self._admit(board, permits)
                groups.create_task(self._play(board, entry), name=entry.group.key.id)

    def _admit(self, board: Board, permits: Permits) -> Entry:
        ticket = board.next_ticket
        before = self.past.admission(ticket)
        choice = self.curriculum.choose(ticket) if before is None else self._again(before)
        task = choice.task
        permits.take(ticket)
        key = GroupKey(
            id=f"t{ticket:06d}", ticket=ticket, task=task.id, family=task.family, split=task.split,
            admitted_version=board.version if before is None else before.version,
        )
        entry = Entry(
            group=self.past.group(key, self.sink), task=task, since=self.clock.now(), place=choice.place
        )
        board.admit(entry)
        self.ledger.admitted(entry, outstanding=permits.held, permits=permits.limit)
        return entry

    def _due(self, board: Board) -> bool:
        """Whether the policy is where it was when the ticket was first admitted, or nothing will bring it there."""
        before = self.past.admission(board.next_ticket)
        return before is None or board.version >= before.version or not board.entries

    def _again(self, before: Admission) -> Choice:
        choice = self.curriculum.again(before.place)
        if choice.task.id != before.task:
            raise ConfigError(
                f"task number {before.place.number} was {before.task!r} when the run began and is {choice.task.id!r} "
                "now: a run goes on only with the taskset that it began with"
            )
        return choice

    async def _play(self, board: Board, entry: Entry) -> None:
        if (reason := self.past.given_up.get(entry.ticket)) is not None:
            board.move(entry, State.DROPPED, reason=reason)
            self.ledger.judged(entry)
            return
        if entry.ticket in self._recorded and entry.group.key.id in self.past.groups:
            board.move(entry, State.GENERATED)  # it is whole: an update took it as it is
            return
        sooner = 0 if self.past.admission(entry.ticket) is None else AGAIN_FIRST

        def priority() -> int:
            return self.schedule.priority(board, entry.ticket) - sooner - entry.boost

        async with asyncio.TaskGroup() as one:  # a task of its own, so that it can be given up alone
            played = self.player.play(
                entry.group, entry.task, priority=priority, max_turns=self._horizon(entry.ticket)
            )
            task = one.create_task(played)
            self._playing[entry.ticket] = task
        del self._playing[entry.ticket]
        if task.cancelled() and entry.ticket not in board.late:
            board.move(entry, State.DROPPED, reason="cancelled")
            self.ledger.judged(entry)
        else:
            board.move(entry, State.GENERATED)

    def _horizon(self, ticket: int) -> int | None:
        """Most turns of the ticket's rollouts, beside their limits; None when there is no horizon."""
        plan, last = self.config.horizon, self.player.player.limits.max_turns
        if plan is None:
            return None
        assert last is not None, "a horizon grows to limits.max_turns"
        return plan.turns(ticket // self.config.groups_per_update, last=last)

    async def evict(self, board: Board) -> None:
        """Cancel the groups that the schedule or the watchdog gives up, each once, until the run is cancelled."""
        while board.batches < self.config.updates:
            await board.until(
                lambda: bool(self._to_evict(board)) or board.batches >= self.config.updates,
                what="schedule waits for a group to give up", stall_s=self.config.follow_s,
            )
            for ticket in self._to_evict(board):
                self._evicted.add(ticket)
                self._playing[ticket].cancel()

    def _to_evict(self, board: Board) -> list[int]:
        chosen = dict.fromkeys([*self.schedule.evict(board), *sorted(board.late)])
        return [ticket for ticket in chosen if ticket in self._playing and ticket not in self._evicted]
