"""Branching `entropy`: fork where the policy does not know what to do.

Before a turn, a look is sampled in the state, its entropy is read, and its tokens are thrown away (but counted): what
comes after it is sampled anew, for all children alike. So the fan-out is decided before any child is sampled, and on
nothing that a child says. A look of one token costs one decoding step and reads the entropy of the distribution itself;
a longer one reads that of the tokens that happened to follow, too.

The bound is a number of nats, or a quantile of what was lately seen. A quantile is fixed before a group begins, so that
what one rollout of it shows never decides about another. It depends on which groups were played before, so that it
depends on timing; a run that goes on begins it anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.agents.branching import GO_ON, Brancher, Budget, GroupPlan, Look, Point, Split, Unforked
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream

SEEN = 1000
"""Looks that a quantile is taken over."""
ENOUGH = 50
"""So many of them make one; before that `threshold` holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByEntropy(Budget):
    """Forks where a look is uncertain. Raises ConfigError naming the key. Idea: 2507.19849."""

    name: ClassVar[str] = "entropy"
    fanout_before_children: ClassVar[bool] = True

    threshold: float = 1.0
    """Nats above which a state forks."""
    quantile: float | None = None
    """Share of the looks of earlier groups above which a state forks, such as 0.8; None takes `threshold`."""
    width: int = 2
    """Children of a state that forks."""
    forks: int = 2
    """Most forks in the tree of one chain."""
    look_tokens: int = 1
    """Tokens of a look."""

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        for key, least in (("width", 2), ("forks", 1), ("look_tokens", 1), ("threshold", 0)):
            if getattr(self, key) < least:
                raise ConfigError(f"branching.{key}: got {getattr(self, key)}, expected >= {least}")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ConfigError(f"branching.quantile: got {self.quantile}, expected a share in (0, 1) or none")

    def rollouts(self, size: int) -> int:
        """If every chain forks as often as it may."""
        return size * (1 + self.forks * (self.width - 1))

    def require(self, *, size: int, limits: RolloutLimits, deterministic: bool) -> None:
        """Beside the budget: a quantile depends on timing."""
        Budget.require(self, size=size, limits=limits, deterministic=deterministic)
        if deterministic and self.quantile is not None:
            raise ConfigError(
                f"branching.quantile={self.quantile:g} contradicts deterministic=true: which groups it was taken over "
                "depends on timing; set branching.quantile=none and branching.threshold"
            )

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """Nothing was seen yet."""
        return _Uncertain(self)


class _Uncertain:
    """What all groups have shown."""

    def __init__(self, config: ByEntropy) -> None:
        self.config = config
        self.seen: deque[float] = deque(maxlen=SEEN)

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        quantile, bound = self.config.quantile, self.config.threshold
        if quantile is not None and len(self.seen) >= ENOUGH:
            bound = float(np.quantile(np.asarray(self.seen), quantile))
        return _Bounded(self, bound)


class _Bounded(Unforked):
    """One group, with its bound."""

    def __init__(self, uncertain: _Uncertain, bound: float) -> None:
        self._all, self._config, self.bound = uncertain, uncertain.config, bound

    def places(self, chain: int) -> int:
        """Of all forks that the chain's tree may have."""
        return self._config.forks * (self._config.width - 1)

    async def fanout(self, point: Point, look: Look) -> Split:
        """Look only where a fork could be paid for, the look included."""
        more, left = self._config.width - 1, point.tokens_left
        if point.state.turn == 0 or point.places < more:
            return GO_ON
        if point.room < more or (left is not None and left <= self._config.look_tokens):
            return Split(refused="budget")
        entropy = await look(self._config.look_tokens)
        self._all.seen.append(entropy)
        return Split(children=self._config.width) if entropy > self.bound else GO_ON
