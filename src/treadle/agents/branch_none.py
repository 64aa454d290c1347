"""Branching `none`: independent rollouts, each from its own reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.branching import Brancher, Budget, GroupPlan, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.seeds import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Independent(Budget):
    """No forks."""

    name: ClassVar[str] = "none"
    fanout_before_children: ClassVar[bool] = True

    def rollouts(self, size: int) -> int:
        """The chains."""
        return size

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """Something to ask only where a budget bounds the chains."""
        return None if self.tokens_per_group is None else _Never()


class _Never:
    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        return Unforked()
