"""Branching `fixed`: a tree of given widths. The state before turn k has `widths[k - 1]` children, wherever it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.branching import GO_ON, Brancher, Budget, GroupPlan, Look, Point, Split, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTree(Budget):
    """Depth times width. Raises ConfigError naming the key."""

    name: ClassVar[str] = "fixed"
    fanout_before_children: ClassVar[bool] = True

    widths: tuple[int, ...] = (2,)
    """Children of a state before turn 1, 2, ...; before turn 0 there are `pipeline.group_size`."""

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"branching.widths: got {list(self.widths)}, expected at least one number, each >= 1")

    def rollouts(self, size: int) -> int:
        """All leaves."""
        return size * math.prod(self.widths)

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """The same tree for all groups."""
        return _Tree(self.widths)


class _Tree(Unforked):
    def __init__(self, widths: tuple[int, ...]) -> None:
        self._widths = widths

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        return self

    def places(self, chain: int) -> int:
        """Leaves beside the chain's own."""
        return math.prod(self._widths) - 1

    async def fanout(self, point: Point, look: Look) -> Split:
        """As wide as the turn says."""
        if not 1 <= point.state.turn <= len(self._widths):
            return GO_ON
        return Split(children=self._widths[point.state.turn - 1])
