"""The KL penalty: how far the policy is from a reference, as one of three estimates per sampled token.

With d = log new - log ref on a token that the policy sampled (Schulman, "Approximating KL divergence"):

    k1 = d                      unbiased, may be negative; in a loss its mean gradient is 0: it belongs in the reward
    k2 = d * d / 2              its gradient is that of the KL
    k3 = exp(-d) - 1 + d        unbiased, never negative

`loss` adds coefficient * mass * k to the loss. `reward` takes coefficient * k of every token of an action from the
action's reward before credit is assigned; there d is that of the policy that sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from treadle.algorithms.loss import MOST_LOG_RATIO, LossTerms
from treadle.algorithms.losses_sequence import behaviour
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest

ESTIMATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: (-d).clamp(max=MOST_LOG_RATIO).exp() - 1 + d,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """A penalty. Raises ConfigError naming the key."""

    coefficient: float = 1e-3
    """What one nat costs: in units of the loss's advantage, or of reward."""
    estimate: str = "k3"
    """`k1`, `k2` or `k3`."""
    where: Literal["loss", "reward"] = "loss"

    def __post_init__(self) -> None:
        if self.estimate not in ESTIMATES:
            raise ConfigError(f"kl.estimate: got {self.estimate!r}, expected one of {', '.join(ESTIMATES)}")
        if self.where not in ("loss", "reward"):
            raise ConfigError(f"kl.where: got {self.where!r}, expected 'loss' or 'reward'")
        if not self.coefficient > 0:
            raise ConfigError(f"kl.coefficient: got {self.coefficient}, expected > 0; algorithm.kl=none turns it off")

    def of(self, distance: Tensor) -> Tensor:
        """k of every d."""
        return ESTIMATES[self.estimate](distance)

    def penalty(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar: what is added to the loss."""
        assert terms.ref is not None, "who uses a KL penalty annotates `ref`"
        return self.coefficient * (terms.mass * self.of(logp - terms.ref)).sum() / terms.denominator

    def rewarded(self, forest: Forest) -> Forest:
        """The forest with the penalty taken from the rewards of its actions. Raises ValueError without `ref`."""
        distance = np.nan_to_num(behaviour(forest) - forest.note("ref"), nan=0.0)
        per_row = np.add.reduceat(self.of(torch.from_numpy(distance)).numpy(), forest.start[:-1])
        return replace(forest, reward=forest.reward - self.coefficient * np.where(forest.policy, per_row, 0.0))
