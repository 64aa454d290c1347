"""Cold start: imitation of demonstrations before reinforcement learning.

The same machinery as every other update (forest, credit, packs, learner), with the rule `imitation` and the loss `nll`
inside its trainer. Epochs over shuffled batches; the order comes from a named stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.agents.deadline import deadline
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream
from treadle.pipeline.failures import Divergence
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.trainer import BlockingThread, Trainer
from treadle.trajectory.group import Group

if TYPE_CHECKING:  # the room's own namespace needs torch
    from treadle.inference.port import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartConfig:
    """Raises ConfigError naming the key."""

    epochs: int = 3
    """Passes over all demonstrations."""
    demonstrations_per_update: int = 8
    update_s: float = 3600.0
    """Deadline of one update."""
    skipped_updates: int = 3
    """Updates in a row whose gradient was not finite, after which the run stops."""

    def __post_init__(self) -> None:
        for key in ("epochs", "demonstrations_per_update", "skipped_updates"):
            if getattr(self, key) < 1:
                raise ConfigError(f"coldstart.{key}: got {getattr(self, key)}, expected >= 1")

    def updates(self, demonstrations: int) -> int:
        """Updates over so many demonstrations."""
        return self.epochs * -(-demonstrations // self.demonstrations_per_update)


class ColdStart:
    """Imitates. Runs once."""

    def __init__(
        self, config: ColdStartConfig, *, trainer: Trainer, engine: Engine, thread: BlockingThread, ledger: Ledger,
        seed: Stream,
    ) -> None:
        self.config = config
        self.trainer = trainer
        """Its rule and loss are those of imitation."""
        self.engine = engine
        self.thread = thread
        self.ledger = ledger
        self.seed = seed
        self._stopping = False

    def stop(self) -> None:
        """Finish the update under way and return."""
        self._stopping = True

    async def run(self, demonstrations: Sequence[Group]) -> int:
        """Train and load the new weights; the updates that were done.

        Raises ConfigError without demonstrations, TrainingDiverged when update after update was not a number.
        """
        if not demonstrations:
            raise ConfigError("coldstart: there is no correct demonstration to imitate; turn the cold start off")
        clock = self.ledger.meter.clock
        began, done, total = clock.now(), 0, self.config.updates(len(demonstrations))
        divergence = Divergence(most=self.config.skipped_updates)
        self.ledger.tell("stage.started", {"stage": "coldstart", "label": "coldstart", "total": total})
        for epoch, batch in self._batches(demonstrations):
            if self._stopping:
                break
            with self.ledger.meter.busy("update"):
                report = await self.thread.call(
                    f"cold start update {done + 1}", lambda batch=batch: self.trainer.train(batch),  # type: ignore[misc]
                    deadline_s=self.config.update_s,
                )
            done += 1
            self.ledger.tell("coldstart.update", {
                "update": done, "updates": total, "epoch": epoch, "version": report.version, "loss": report.loss,
                "grad_norm": report.grad_norm, "lr": report.lr, "tokens_trained": report.tokens_trained,
                "seconds_s": report.seconds, "skipped": report.skipped,
            })
            divergence.saw(report)
        ref = await self.thread.call(
            "publish after the cold start", self.trainer.publish, deadline_s=self.config.update_s
        )
        async with deadline("engine load after the cold start", self.config.update_s):
            await self.engine.load(ref)
        self.ledger.tell("stage.done", {"stage": "coldstart", "label": "coldstart", "seconds_s": clock.now() - began})
        return done

    def _batches(self, demonstrations: Sequence[Group]) -> list[tuple[int, list[Group]]]:
        size, out = self.config.demonstrations_per_update, list[tuple[int, list[Group]]]()
        for epoch in range(1, self.config.epochs + 1):
            order = list(demonstrations)
            self.seed.at("coldstart", epoch).python().shuffle(order)
            out += [(epoch, order[at : at + size]) for at in range(0, len(order), size)]
        return out
