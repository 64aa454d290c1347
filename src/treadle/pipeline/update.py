"""The update pump: the next batch -> bound -> credit, packs, step -> version + 1 -> load -> permits back.

Waits for: every ticket of the next batch to be settled (the evaluate pump wakes it). Wakes: the generate pump, when it
gives the batch's permits back. The step itself runs in the blocking thread, so rollouts go on meanwhile.

Staleness is the learner's version at the update minus the oldest version among the trained tokens and the KV they were
computed on. It is bounded here, at selection, whatever the schedule did: a group past the bound is dropped, reason
`stale`. Where `on_stale` is `mask`, it trains without what is too old, and is dropped only when nothing else is left.

An update that changed nothing (its gradient was not finite, or there was nothing to train) trained nobody: its groups
are dropped, reason `skipped`. When that happens update after update the run stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.agents.deadline import deadline
from treadle.pipeline.board import Board, Entry, State, batch_wait
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Curriculum
from treadle.pipeline.failures import Divergence, nothing_scored
from treadle.pipeline.filters import LOST
from treadle.pipeline.ledger import Ledger, sampled_tokens
from treadle.pipeline.permits import Permits
from treadle.pipeline.placebo import RewardTransform
from treadle.pipeline.schedule import Schedule
from treadle.pipeline.stale import masked
from treadle.pipeline.statistics import BatchReport, Pace
from treadle.pipeline.trainer import BlockingThread, Trainer, TrainReport
from treadle.trajectory.group import Group

if TYPE_CHECKING:  # the room's own namespace needs torch
    from treadle.inference.port import Engine


class UpdatePump:
    """Takes batches off the board."""

    def __init__(
        self, config: PipelineConfig, *, trainer: Trainer, engine: Engine, schedule: Schedule, thread: BlockingThread,
        ledger: Ledger, curriculum: Curriculum, transform: RewardTransform | None = None,
    ) -> None:
        self.config = config
        self.trainer = trainer
        self.engine = engine
        self.schedule = schedule
        self.thread = thread
        self.ledger = ledger
        self.curriculum = curriculum
        """Learns from every batch, in ticket order, before the batch's permits are given back."""
        self.transform = transform
        self.worst_staleness = 0
        """Worst staleness that was ever trained on."""
        self.pace = Pace(config.updates, tokens=config.tokens)
        self.divergence = Divergence(most=config.skipped_updates)
        """Updates whose gradient was not finite; replayed ones stop nothing."""
        self._failed_batches = 0

    async def next_batch(self, board: Board) -> list[Entry] | None:
        """The next batch in the schedule's order; None when the run stops first."""
        await board.until(
            lambda: board.stopping or self.schedule.select(board) is not None,
            what=batch_wait(board.batches + 1), stall_s=self.config.stall_s,
        )
        if board.stopping:
            return None
        tickets = self.schedule.select(board)
        assert tickets is not None
        return [board.entries[ticket] for ticket in tickets]

    async def take(self, board: Board, permits: Permits, batch: Sequence[Entry]) -> None:
        """Train a batch, close its tickets, give its permits back."""
        ready, groups = self._bounded(board, batch)
        too_old = sum(sampled_tokens(entry.trains) for entry in ready) - sum(map(sampled_tokens, groups))
        number = board.batches + 1
        self.ledger.taken(number, batch, ready, version=self.trainer.version)
        report: TrainReport | None = None
        staleness: list[int] = []
        if ready:
            self.ledger.tell("update.started", {
                "update": number, "version": self.trainer.version, "groups": len(ready), "tickets": len(batch),
            })
            staleness = [self._staleness(group) for group in groups]
            self.worst_staleness = max(self.worst_staleness, *staleness)
            report = await self._train(board, number, groups)
        for entry in sorted(batch, key=lambda entry: entry.ticket):
            self.curriculum.learn(entry.task, entry.group)
            self.schedule.closed(entry)
        board.learned = number
        board.tokens += sum(self.ledger.spent(entry.group) for entry in batch)
        self.pace.spent = board.tokens
        if report is not None and not report.skipped:
            await self._load(board, number, report.version)
        for entry, stale in zip(ready, staleness, strict=True):
            assert report is not None
            self._settle(board, entry, report, staleness=stale)
        self._report(number, batch, report, staleness, too_old=too_old)
        board.version = self.trainer.version
        board.batches += 1
        for entry in batch:
            self.ledger.closed(entry.group)
            board.remove(entry.ticket)
            permits.give_back(entry.ticket)
        board.touch()
        self._give_up_on_failures(number, batch)
        if report is not None:
            self.divergence.saw(report, counts=self.ledger.past.batch(number) is None)

    def _settle(self, board: Board, entry: Entry, report: TrainReport, *, staleness: int) -> None:
        """Trained, or dropped because its update changed nothing."""
        if report.skipped:
            board.move(entry, State.DROPPED, reason="skipped")
            self.ledger.judged(entry)
        else:
            board.move(entry, State.TRAINED)
            self.ledger.trained(entry, version=report.version, staleness=staleness)

    async def _train(self, board: Board, number: int, groups: Sequence[Group]) -> TrainReport:
        chosen = groups if self.transform is None else [self.transform(group) for group in groups]
        board.occupied = f"update {number}"
        try:
            with self.ledger.meter.busy("update"):
                return await self.thread.call(
                    board.occupied, lambda: self.trainer.train(chosen), deadline_s=self.config.update_s
                )
        finally:
            board.occupied = ""

    async def _load(self, board: Board, number: int, version: int) -> None:
        board.occupied, began = f"engine load after update {number}", board.clock.now()
        try:
            with self.ledger.meter.busy("update"):
                ref = await self.thread.call(
                    f"publish after update {number}", self.trainer.publish, deadline_s=self.config.update_s
                )
                async with deadline(board.occupied, self.config.update_s):
                    loaded = await self.engine.load(ref)
        finally:
            board.occupied = ""
        assert loaded == version, f"the engine serves version {loaded}, the learner made {version}"
        self.ledger.tell("weights.published", {
            "update": number, "version": version, "seconds_s": board.clock.now() - began,
        })

    def _bounded(self, board: Board, batch: Sequence[Entry]) -> tuple[list[Entry], list[Group]]:
        """The ready tickets of a batch and what trains of their groups; what is past the bound is dropped here."""
        kept, groups = [], []
        for entry in batch:
            if entry.state is not State.READY:
                continue
            group = self._within(entry.trains)
            if group is None:
                board.move(entry, State.DROPPED, reason="stale")
                self.ledger.judged(entry)
            else:
                kept.append(entry)
                groups.append(group)
        return kept, groups

    def _within(self, group: Group) -> Group | None:
        """What of a group is within the bound; None when nothing is, or nothing may be left out."""
        if self._staleness(group) <= self.config.staleness_bound:
            return group
        if self.config.on_stale != "mask":
            return None
        return masked(group, oldest=self.trainer.version - self.config.staleness_bound)

    def _staleness(self, group: Group) -> int:
        oldest = group.oldest_version
        return 0 if oldest is None else self.trainer.version - oldest

    def _report(
        self, number: int, batch: Sequence[Entry], report: TrainReport | None, staleness: Sequence[int], *, too_old: int
    ) -> None:
        facts = BatchReport.of(batch, self.ledger.rewards, branching=self.ledger.branching)
        pools = self.curriculum.statistics().values
        window = self.ledger.meter.read()
        if report is None:
            self.pace.skipped(window.seconds)
            self.ledger.tell("update.skipped", {
                "update": number, "updates": self.config.updates, "version": self.trainer.version,
                "reason": "empty", "seconds_s": window.seconds, **facts.short(), **pools,
            })
            return
        self.ledger.tell("update.done", {
            "update": number, "updates": self.config.updates, "version": report.version, **facts.long(), **pools,
            **self.pace.values(number, window), "loss": report.loss, "grad_norm": report.grad_norm, "lr": report.lr,
            "tokens_trained": report.tokens_trained, "update_s": report.seconds, "skipped": report.skipped,
            "staleness": max(staleness), "staleness_mean": sum(staleness) / len(staleness), "stale_tokens": too_old,
            "skew_mean": report.skew_mean, "skew_max": report.skew_max,
            **{f"stat.{name}": value for name, value in report.stats.items()},
            **{f"age.{name}": value for name, value in report.ages.items()},
        })

    def _give_up_on_failures(self, number: int, batch: Sequence[Entry]) -> None:
        """Raise the last failure when batch after batch is lost to failed rollouts: that is no bad luck.

        Batches of before an interruption do not count: whoever resumed the run may have mended what failed.
        """
        if any(entry.reason not in LOST for entry in batch) or self.ledger.past.batch(number) is not None:
            self._failed_batches = 0
            return
        self._failed_batches += 1
        if self._failed_batches >= self.config.failed_batches:
            what = f"no group of {self._failed_batches} batches in a row had enough rollouts that could be scored"
            raise nothing_scored(what, [entry.group for entry in batch])
