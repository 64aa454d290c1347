"""The loop: three pumps over one board.

    generate pump --GENERATED--> evaluate pump --READY|DROPPED--> update pump --permits, version--> generate pump

Every pump is a task of one TaskGroup; each waits only on the board, with a deadline and a name, and the watchdog does
what it can before such a deadline ends the run. The update pump leads: when it has taken the last batch, or a stop was
asked for, it ends and the others are cancelled, which closes every environment that is still open. `stop()` lets an
update under way finish; then the weights are saved and `run` returns.

A loop goes on where `LoopParts.begin` and the ledger's past say: tickets of the batches before it are closed, all
others are admitted in order as ever, and what the past holds of them is there when they are admitted. So an interrupted
run trains again what came after its checkpoint, without generating it again, and then goes on.

Evaluations run between two updates, inside the update pump, so that the policy version stands still while they last;
the generate pump goes on as far as its permits reach. A loop that goes on behind an update that is followed by an
evaluation begins with that one: what was finished of it is not done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import Rewards
from treadle.core.errors import DeadlineExceeded
from treadle.core.ports import Statistics
from treadle.envs.task import Taskset
from treadle.pipeline.board import Board, State
from treadle.pipeline.breaker import Breaker
from treadle.pipeline.checkpoints import Checkpoints, Mark
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Curriculum, TicketTasks
from treadle.pipeline.evaluate import EvaluatePump
from treadle.pipeline.filters import EnoughValid, Filter
from treadle.pipeline.first_error import first_error
from treadle.pipeline.generate import GeneratePump, Room
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.permits import Permits
from treadle.pipeline.placebo import RewardTransform
from treadle.pipeline.schedule import Recorded, Schedule
from treadle.pipeline.trainer import BlockingThread, Trainer
from treadle.pipeline.update import UpdatePump
from treadle.pipeline.watchdog import Watchdog
from treadle.trajectory.group import Group, Sink

if TYPE_CHECKING:  # the room's own namespace needs torch
    from treadle.inference.port import Engine

EvaluateBetween = Callable[[int], Awaitable[None]]
"""Evaluates after the update of this number; returns early when the run stops. No update runs meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What a loop is made of."""

    taskset: Taskset
    player: GroupPlayer
    trainer: Trainer
    engine: Engine
    ledger: Ledger
    """Holds the listener; the same one must be the player's watcher."""
    thread: BlockingThread
    filters: Sequence[Filter]
    checkpoints: Checkpoints | None = None
    """None saves nothing."""
    schedule: Schedule | None = None
    """None takes the one that the config names."""
    curriculum: Curriculum | None = None
    """None plays the taskset's tasks in ticket order."""
    sink: Sink | None = None
    """Where groups are stored; None keeps them only while they are needed."""
    store: Room | None = None
    """What is behind the sink: a ticket starts when it has room; None has room always."""
    transform: RewardTransform | None = None
    """Replaces the rewards of a group just before credit; None trains on what the world paid."""
    evaluate: EvaluateBetween | None = None
    """Called after every `evaluate_every`-th update but the last."""
    begin: Mark = field(default_factory=Mark)
    """Where the trainer's weights stand; the ledger's past holds what came after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """How a loop ended."""

    reason: str
    """`done` or `interrupted`."""
    updates: int
    """Batches taken, empty ones included."""
    version: int
    worst_staleness: int
    most_outstanding: int
    skipped_updates: int = 0
    """Updates whose gradient was not finite."""


def default_filters(config: PipelineConfig, *, rewards: Rewards, min_rollouts: int) -> tuple[Filter, ...]:
    """Enough valid rollouts, then what the config names: first what masks."""
    enough = EnoughValid(
        group_size=config.group_size, spare=config.spare_rollouts, min_valid=config.min_valid,
        min_rollouts=min_rollouts,
    )
    plans = sorted(config.filters, key=lambda plan: not plan.masking)
    named = [plan.begin(rewards=rewards, min_rollouts=min_rollouts) for plan in plans]
    return (enough, *(one for one in named if one is not None))


class Loop:
    """Reinforcement learning from the first ticket to the last. Runs once."""

    def __init__(self, config: PipelineConfig, parts: LoopParts) -> None:
        self.config = config
        self.parts = parts
        self.permits = Permits(config.permits)
        ledger = parts.ledger
        self.board = Board(
            clock=parts.player.clock, version=parts.trainer.version, batches=parts.begin.update,
            tokens=parts.begin.tokens,
            closed=frozenset(ticket for k in range(parts.begin.update) for ticket in self._batch(k + 1)),
        )
        self.board.made_since = parts.player.made_since
        order = parts.schedule or config.schedule.begin(config.bounds, rewards=ledger.rewards)
        schedule = Recorded(schedule=order, batch=ledger.past.batch)
        self.curriculum = curriculum = self._curriculum()
        if parts.begin.curriculum:
            curriculum.restore(parts.begin.curriculum)
        if parts.checkpoints is not None:
            parts.checkpoints.mark = self.mark
        self._generate = GeneratePump(
            config, curriculum=curriculum, player=parts.player, schedule=schedule, ledger=ledger, sink=parts.sink,
            store=parts.store,
        )
        self._evaluate = EvaluatePump(config, filters=parts.filters, ledger=ledger)
        self._update = UpdatePump(
            config, trainer=parts.trainer, engine=parts.engine, schedule=schedule, thread=parts.thread, ledger=ledger,
            curriculum=curriculum, transform=parts.transform,
        )
        self.watchdog = Watchdog(
            config.watchdog, board=self.board, schedule=schedule, player=parts.player, ledger=ledger,
            boost=config.permits,
        )

    def stop(self) -> None:
        """Finish the update under way, save, return `interrupted`. From the event loop's thread only."""
        if not self.board.stopping:
            self.parts.ledger.tell("run.stopping", {"update": self.board.batches, "reason": "asked to stop"})
            self.board.stop()

    def mark(self) -> Mark:
        """Where the weights of now stand."""
        board = self.board
        return Mark(stage="rl", update=board.learned, curriculum=self.curriculum.state(), tokens=board.tokens)

    async def run(self) -> LoopReport:
        """Run to the end or to `stop()`. Raises the first error of a pump, not a group of errors."""
        self.parts.ledger.board = self.board
        self.parts.ledger.meter.read()
        try:
            with first_error():
                async with asyncio.TaskGroup() as pumps:
                    others = [
                        pumps.create_task(self._generate.run(self.board, self.permits), name="generate pump"),
                        pumps.create_task(self._evaluate.run(self.board), name="evaluate pump"),
                        pumps.create_task(self._generate.evict(self.board), name="evictions"),
                        pumps.create_task(self.watchdog.run(), name="watchdog"),
                    ]
                    await self._lead()
                    for task in others:
                        task.cancel()
        except BaseException as error:  # the books must not hide it; it is raised again
            if isinstance(error, DeadlineExceeded):
                action = f"the run was stopped{self.watchdog.did()}"
                self.parts.ledger.tell("wait.expired", {"what": str(error), "action": action})
            self._close_open_tickets(self.parts.ledger.forget)
            raise
        else:
            self._close_open_tickets(self.parts.ledger.closed)
        finally:
            self.parts.ledger.board = None
        if self.parts.checkpoints is not None:
            await self.parts.checkpoints.save(update=self.board.batches)
        return LoopReport(
            reason="done" if self._over else "interrupted",
            updates=self.board.batches, version=self.board.version,
            worst_staleness=self._update.worst_staleness, most_outstanding=self.permits.most,
            skipped_updates=self._update.divergence.total,
        )

    def statistics(self) -> Statistics:
        """Permits and tickets."""
        states = [entry.state for entry in self.board.entries.values()]
        counts = {f"tickets_{state}": float(states.count(state)) for state in State}
        return Statistics(values={**self.permits.statistics().values, **counts})

    def _curriculum(self) -> Curriculum:
        """What tickets are taken from, the circuit breaker included."""
        config, inner = self.config, self.parts.curriculum or TicketTasks(self.parts.taskset)
        if not config.breaker_failures:
            return inner
        tell = self.parts.ledger.tell
        return Breaker(inner=inner, failures=config.breaker_failures, cool_down=config.breaker_tickets, tell=tell)

    def _batch(self, update: int) -> Sequence[int]:
        """The tickets that an update before the checkpoint took; in ticket order where the ledger lost its word."""
        size = self.config.groups_per_update
        return self.parts.ledger.past.batch(update) or range((update - 1) * size, update * size)

    @property
    def _over(self) -> bool:
        """Whether no update is to begin any more."""
        most, taken, tokens = self.config.tokens, self.board.batches, self.board.tokens
        if most is not None and taken:  # another update would end farther from them than this one, by the mean so far
            most -= tokens // taken // 2
        return taken >= self.config.updates or (most is not None and tokens >= most)

    async def _lead(self) -> None:
        """The update pump: batch after batch until the last one or a stop."""
        await self._evaluate_after(self.board.batches)  # where the run was interrupted, if it was
        while not self._over:
            batch = await self._update.next_batch(self.board)
            if batch is None:
                return
            await self._update.take(self.board, self.permits, batch)
            if self.board.stopping:
                return
            await self._between(self.board.batches)

    async def _between(self, update: int) -> None:
        config, parts = self.config, self.parts
        if self._over:
            return
        if config.save_every and update % config.save_every == 0 and parts.checkpoints is not None:
            await self._occupied(f"checkpoint after update {update}", parts.checkpoints.save(update=update))
        await self._evaluate_after(update)

    async def _evaluate_after(self, update: int) -> None:
        every, evaluate = self.config.evaluate_every, self.parts.evaluate
        if every and evaluate is not None and update % every == 0 and update > 0 and not self._over:
            await self._occupied(f"evaluation after update {update}", evaluate(update))

    async def _occupied(self, what: str, work: Awaitable[object]) -> None:
        self.board.occupied = what
        try:
            await work
        finally:
            self.board.occupied = ""

    def _close_open_tickets(self, close: Callable[[Group], None]) -> None:
        """What was admitted and not trained ends here: dropped, reason `cancelled`."""
        for entry in list(self.board.entries.values()):
            if entry.state not in (State.DROPPED, State.TRAINED):
                self.board.move(entry, State.DROPPED, reason="cancelled")
                self.parts.ledger.judged(entry)
            close(entry.group)
            self.board.remove(entry.ticket)
            self.permits.give_back(entry.ticket)
