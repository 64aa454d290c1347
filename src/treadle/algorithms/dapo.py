"""DAPO: grpo on returns from which rollouts that come close to the length limit lose, softly.

The rest of the method is elsewhere: the clip range .2/.28 is `ppo_clip`'s, the token mean is the aggregation's, dynamic
sampling is `pipeline.schedule=dynamic` with the filter `zero_variance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, PathCredit, Scope
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest, Index, center


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo:
    """grpo of return + overlong punishment (2503.14476).

    With L the action tokens of a rollout: 0 up to longest - margin, falling to -1 at `longest`, -1 beyond.
    """

    name: ClassVar[str] = "dapo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    longest: int | None = None
    """Action tokens of a rollout that cost the whole punishment; None punishes no length."""
    margin: int = 1
    """Tokens below `longest` over which the punishment grows."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"dapo.eps: got {self.eps}, expected > 0")
        if self.longest is not None and not self.longest >= 1:
            raise ConfigError(f"dapo.longest: got {self.longest}, expected >= 1 or none")
        if self.margin < 1 or (self.longest is not None and self.margin > self.longest):
            raise ConfigError(f"dapo.margin: got {self.margin}, expected 1 .. dapo.longest={self.longest}")

    def punishment(self, tokens: Index) -> Column:
        """[R] what rollouts of so many action tokens [R] lose, in -1 .. 0."""
        if self.longest is None:
            return np.zeros(len(tokens))
        return np.clip((self.longest - self.margin - tokens) / self.margin, -1.0, 0.0)

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        shaped = forest.returns + self.punishment(forest.rollout_tokens)
        return PathCredit(advantage=center(shaped, forest.rollout_group, std=True, eps=self.eps))
