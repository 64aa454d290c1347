"""What stops a run: nothing could be scored at all, or update after update was not a number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from treadle.core.errors import EnvError, InfraError, TrainingDiverged, TreadleError
from treadle.core.outcome import Origin
from treadle.pipeline.trainer import TrainReport
from treadle.trajectory.group import Group


def nothing_scored(what: str, groups: Iterable[Group]) -> TreadleError:
    """EnvError, or InfraError where the machinery failed last, with the last failure's own line."""
    ends = [r.outcome for group in groups for r in group.rollouts.values() if r.outcome is not None]
    last = next((outcome for outcome in reversed(ends) if outcome.failed), None)
    if last is None:
        return EnvError(f"{what}: the environment gave no score")
    kind = InfraError if last.origin is Origin.INFRA else EnvError
    return kind(f"{what}; the last one ended ({last.status}, {last.origin}) {last.type}: {last.message}")


@dataclass(slots=True, kw_only=True)
class Divergence:
    """Counts updates whose gradient was not finite; such an update changes nothing."""

    most: int
    """So many in a row are too many."""
    total: int = 0
    in_a_row: int = 0

    def saw(self, report: TrainReport, *, counts: bool = True) -> None:
        """Take one update; one that does not count cannot stop the run. Raises TrainingDiverged."""
        if not report.skipped or math.isfinite(report.grad_norm):
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += counts
        if self.in_a_row >= self.most:
            raise TrainingDiverged(
                f"the gradient of {self.in_a_row} updates in a row was not finite (norm {report.grad_norm}, "
                f"loss {report.loss}); the weights stayed those of version {report.version}: lower learner.lr, or look "
                "at the loss and the rewards"
            )
