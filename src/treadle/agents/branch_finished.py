"""Branching `expand_finished`: N forks of finished chains, at states that are drawn once all of them have ended.

No draw is wasted on a chain that ended early, and the snapshots of all states have to be kept until then. It decides a
state's fan-out when one child of it is known already, so that credit that is unbiased on other trees is not on these
(`fanout_before_children` is False): how much is said in docs/branching.md. Source: Tree-GRPO, 2509.21240.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.branching import Brancher, Budget, GroupPlan, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandFinished(Budget):
    """Expansions that are drawn behind the rollouts. Raises ConfigError naming the key."""

    name: ClassVar[str] = "expand_finished"
    fanout_before_children: ClassVar[bool] = False

    expansions: int = 4
    """Of a group, over all its chains."""

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        if self.expansions < 1:
            raise ConfigError(f"branching.expansions: got {self.expansions}, expected >= 1")

    def rollouts(self, size: int) -> int:
        """Chains and expansions."""
        return size + self.expansions

    def parts(self, size: int) -> int:
        """The chains leave something for the expansions."""
        return size + self.expansions

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """Draws when the chains of a group have ended."""
        return _Behind(self.expansions)


class _Behind:
    def __init__(self, expansions: int) -> None:
        self._expansions = expansions

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        return _Finished(self._expansions, seed)


class _Finished(Unforked):
    keeps = True

    def __init__(self, expansions: int, seed: Stream) -> None:
        self._expansions, self._seed = expansions, seed

    def finish(self, states: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Each chain that has states is as likely as another, and so is each of its states."""
        draw = self._seed.python()
        chains = [chain for chain, count in enumerate(states) if count]
        drawn = [draw.choice(chains) for _ in range(self._expansions if chains else 0)]
        return [(chain, draw.randrange(states[chain])) for chain in drawn]
