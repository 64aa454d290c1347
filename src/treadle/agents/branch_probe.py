"""Branching `probe`: what the states of the chains are worth, by playing on from them.

From every state of a chain, up to a turn, k rollouts are played that train nothing: the mean of their returns is the
state's value (`Forest.probed`), which rules such as `vine` take the differences of. The prompt, which all chains share,
is probed once. They vote in no baseline and enter no loss; their tokens count. Source: VinePPO, 2410.01679.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.branching import GO_ON, Brancher, Budget, GroupPlan, Look, Point, Split, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Budget):
    """Value rollouts. Raises ConfigError naming the key."""

    name: ClassVar[str] = "probe"
    fanout_before_children: ClassVar[bool] = True

    probes: int = 4
    """From each state."""
    turns: int = 8
    """States before turn 0 .. turns are probed."""

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        if self.probes < 1:
            raise ConfigError(f"branching.probes: got {self.probes}, expected >= 1")
        if self.turns < 0:
            raise ConfigError(f"branching.turns: got {self.turns}, expected >= 0")

    def rollouts(self, size: int) -> int:
        """Probes do not train."""
        return size

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """The same for all groups."""
        return _Probed(self)


class _Probed(Unforked):
    spreads = False

    def __init__(self, config: Probe) -> None:
        self._config = config

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        return self

    def places(self, chain: int) -> int:
        """Chain 0 probes the prompt, too."""
        return self._config.probes * (self._config.turns + (chain == 0))

    async def fanout(self, point: Point, look: Look) -> Split:
        """The rollout goes on alone."""
        first = 0 if point.chain == 0 else 1
        asked = first <= point.state.turn <= self._config.turns
        return Split(probes=self._config.probes) if point.trunk and asked else GO_ON
