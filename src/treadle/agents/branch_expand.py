"""Branching `expand`: N expansions of a group's chains, at states that are drawn before anything is played.

Each is one (chain, turn), drawn from the group's own stream: when that chain gets to the state before that turn, the
state gets one more child. Two draws of one state give it two more. A chain that has ended by then is not expanded, and
that is counted. Because the draws know nothing of what happens, credit on the tree stays unbiased; `expand_finished`
wastes none of them, and is biased.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.branching import GO_ON, Brancher, Budget, GroupPlan, Look, Point, Split, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Expand(Budget):
    """Expansions that are drawn before the rollouts. Raises ConfigError naming the key."""

    name: ClassVar[str] = "expand"
    fanout_before_children: ClassVar[bool] = True

    expansions: int = 4
    """Of a group, over all its chains."""
    turns: int | None = None
    """The turns before which states are expanded are drawn from 1 .. turns; None takes all that `limits.max_turns`
    allows. A chain that ends earlier loses its expansions, so this should be what chains mostly reach."""

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        for key in ("expansions", "turns"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"branching.{key}: got {value}, expected >= 1")

    def rollouts(self, size: int) -> int:
        """If no chain ends too early."""
        return size + self.expansions

    def require(self, *, size: int, limits: RolloutLimits, deterministic: bool) -> None:
        """Beside the budget: turns to draw from."""
        Budget.require(self, size=size, limits=limits, deterministic=deterministic)
        if self.turns is None and limits.max_turns is None:
            raise ConfigError(
                "branching.turns=none contradicts limits.max_turns=none: expansions are drawn before the rollouts, "
                "expected one of them to say from how many turns"
            )

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """Draws anew for each group."""
        return _Drawing(self, size)


class _Drawing:
    def __init__(self, config: Expand, size: int) -> None:
        self._config, self._size = config, size

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        last = min(bound for bound in (self._config.turns, None if turns is None else turns - 1) if bound is not None)
        draw = seed.python()
        count = self._config.expansions if last else 0
        return _Drawn(Counter((draw.randrange(self._size), 1 + draw.randrange(last)) for _ in range(count)))


class _Drawn(Unforked):
    """One group: how often each (chain, turn) is expanded."""

    spreads = False
    draws = True

    def __init__(self, drawn: Counter[tuple[int, int]]) -> None:
        self.drawn = drawn

    def places(self, chain: int) -> int:
        """All that were drawn on it."""
        return sum(count for (drawn, _), count in self.drawn.items() if drawn == chain)

    async def fanout(self, point: Point, look: Look) -> Split:
        """A chain's own states only: its expansions do not fork again."""
        more = self.drawn[point.chain, point.state.turn] if point.trunk else 0
        return Split(children=1 + more) if more else GO_ON
