"""When nothing could be scored at all: the last failure as the error that stops the run."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.core.errors import EnvError, InfraError, TreadleError
from treadle.core.outcome import Origin
from treadle.trajectory.group import Group


def nothing_scored(what: str, groups: Iterable[Group]) -> TreadleError:
    """EnvError, or InfraError where the machinery failed last, with the last failure's own line."""
    ends = [r.outcome for group in groups for r in group.rollouts.values() if r.outcome is not None]
    last = next((outcome for outcome in reversed(ends) if outcome.failed), None)
    if last is None:
        return EnvError(f"{what}: the environment gave no score")
    kind = InfraError if last.origin is Origin.INFRA else EnvError
    return kind(f"{what}; the last one ended ({last.status}, {last.origin}) {last.type}: {last.message}")
