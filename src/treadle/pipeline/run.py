"""A whole training run: untouched -> cold start -> reinforcement learning -> final, with an evaluation at every arrow.

    evaluation "untouched" -> demonstrations -> cold start -> evaluation "coldstart" -> loop -> evaluation "final"

Each stage may be left out. `stop()` ends whichever is under way (an update finishes, an evaluation is given up), saves
and returns `interrupted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from treadle.agents.demonstrator import DemonstrationPlan, Demonstrations, Demonstrator
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.coldstart import ColdStart
from treadle.pipeline.evaluation import Evaluation, Evaluator
from treadle.pipeline.first_error import first_error
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import EvaluateBetween, Loop, LoopReport

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run is made of; None leaves the stage out."""

    ledger: Ledger
    make_loop: Callable[[EvaluateBetween], Loop] | None
    """Called when the loop begins, with what its `LoopParts.evaluate` should be."""
    evaluator: Evaluator | None = None
    demonstrator: Demonstrator | None = None
    demonstrations: DemonstrationPlan = field(default_factory=DemonstrationPlan)
    coldstart: ColdStart | None = None
    checkpoints: Checkpoints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a run ended."""

    reason: str
    """`done` or `interrupted`."""
    version: int
    evaluations: tuple[Evaluation, ...]
    """In order; `untouched`, `coldstart` and `final` are those that ran."""
    loop: LoopReport | None
    checkpoint: Path | None
    seconds: float

    def evaluation(self, label: str) -> Evaluation | None:
        """The last evaluation of this label."""
        return next((e for e in reversed(self.evaluations) if e.label == label), None)


class TrainingRun:
    """Runs once. `facts` are told in `run.started`."""

    def __init__(self, parts: RunParts, *, version: Callable[[], int], facts: dict[str, str | int | float]) -> None:
        self.parts = parts
        self.version = version
        self.facts = facts
        self.evaluations: list[Evaluation] = []
        self._stopping = False
        self._loop: Loop | None = None
        self._fragile: asyncio.Task[Any] | None = None

    def stop(self) -> None:
        """Come to an end: the update under way finishes. From the event loop's thread only; may be called again."""
        if not self._stopping:
            self.parts.ledger.tell("run.stopping", {
                "update": self._loop.board.batches if self._loop else 0, "reason": "asked to stop",
            })
        self._stopping = True
        if self.parts.coldstart is not None:
            self.parts.coldstart.stop()
        if self._loop is not None:
            self._loop.stop()
        if self._fragile is not None:
            self._fragile.cancel()

    async def evaluate(self, label: str, *, update: int = 0, tasks: int | None = None) -> None:
        """Evaluate and remember; given up when the run stops."""
        if self.parts.evaluator is None or self._stopping:
            return
        found = await self._giving_up(self.parts.evaluator.run(label, update=update, tasks=tasks))
        if found is not None:
            self.evaluations.append(found)

    async def run(self) -> RunReport:
        """All stages in order."""
        parts, clock = self.parts, self.parts.ledger.meter.clock
        began = clock.now()
        parts.ledger.tell("run.started", dict(self.facts))
        untouched = parts.evaluator.config.untouched_tasks if parts.evaluator is not None else None
        await self.evaluate("untouched", tasks=untouched)
        if parts.coldstart is not None and await self._imitate(parts.coldstart):
            await self.evaluate("coldstart")
        loop = await self._reinforce()
        if loop is not None and loop.reason == "done":
            await self.evaluate("final", update=loop.updates)
        checkpoint = None
        if parts.checkpoints is not None and self.version() > 0:
            checkpoint = await parts.checkpoints.save(update=loop.updates if loop is not None else 0)
        report = RunReport(
            reason="interrupted" if self._stopping else "done", version=self.version(), loop=loop,
            evaluations=tuple(self.evaluations), checkpoint=checkpoint, seconds=clock.now() - began,
        )
        parts.ledger.tell("run.done", {
            "reason": report.reason, "version": report.version, "seconds_s": report.seconds,
            "updates": loop.updates if loop is not None else 0,
        })
        return report

    async def _between(self, update: int) -> None:
        await self.evaluate(f"update-{update}", update=update)

    async def _imitate(self, coldstart: ColdStart) -> bool:
        found = await self._demonstrations()
        if found is None or self._stopping:
            return False
        await coldstart.run(found.groups)
        return True

    async def _demonstrations(self) -> Demonstrations | None:
        parts, clock = self.parts, self.parts.ledger.meter.clock
        if parts.demonstrator is None or self._stopping:
            return None
        began = clock.now()
        stage = {"stage": "demonstrations", "label": "demonstrations"}
        parts.ledger.tell("stage.started", {**stage, "total": parts.demonstrations.most})
        found = await self._giving_up(
            parts.demonstrator.collect(parts.demonstrations)
        )
        if found is None:
            return None
        seconds = clock.now() - began
        parts.ledger.tell("coldstart.demos", {
            "tried": found.tried, "kept": len(found.groups), "wrong": found.wrong, "failed": found.failed,
            "families": len(found.families), "tokens": found.tokens, "seconds_s": seconds,
        })
        parts.ledger.tell("stage.done", {**stage, "seconds_s": seconds})
        return found

    async def _reinforce(self) -> LoopReport | None:
        if self.parts.make_loop is None or self._stopping:
            return None
        self._loop = loop = self.parts.make_loop(self._between)
        clock = self.parts.ledger.meter.clock
        began = clock.now()
        stage = {"stage": "rl", "label": "rl"}
        self.parts.ledger.tell("stage.started", {**stage, "total": loop.config.updates})
        report = await loop.run()
        self.parts.ledger.tell("stage.done", {**stage, "seconds_s": clock.now() - began})
        return report

    async def _giving_up(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of work that a stop may cancel; None when it did."""
        with first_error():
            async with asyncio.TaskGroup() as owner:
                self._fragile = task = owner.create_task(work)
        self._fragile = None
        return None if task.cancelled() else task.result()
