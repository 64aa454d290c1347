"""REINFORCE++: no critic and no group, only the update's own mean and spread.

`reinforce_pp` gives every action token its return from there on, with -beta KL(policy || reference) paid on each
token, and whitens over all action tokens of the update. `reinforce_pp_baseline` takes the group's mean from the return
first. Both count a shared token as often as rollouts run through it, as training them one by one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, PathCredit, Scope, TokenCredit
from treadle.algorithms.demanded import noted
from treadle.algorithms.gae import token_gae
from treadle.algorithms.moments import moments
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest, center

EPS = 1e-8
"""Added to the variance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP:
    """Whitened token returns with a KL penalty in the reward (2501.03262)."""

    name: ClassVar[str] = "reinforce_pp"
    scope: ClassVar[Scope] = "batch"
    gives: ClassVar[Gives] = "token"
    min_rollouts: ClassVar[int] = 1

    beta: float = 0.0
    """Reward taken per nat that a token's log-prob lies above the reference's (the k1 estimate of the KL)."""
    gamma: float = 1.0
    """Discount per action token."""

    def __post_init__(self) -> None:
        if not self.beta >= 0:
            raise ConfigError(f"reinforce_pp.beta: got {self.beta}, expected >= 0")
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"reinforce_pp.gamma: got {self.gamma}, expected 0 < gamma <= 1")

    @property
    def needs(self) -> frozenset[str]:
        """The reference's log-probs when beta > 0."""
        return frozenset({"ref"} if self.beta > 0 else ())

    def returns(self, forest: Forest) -> Column:
        """[T] discounted reward from each action token on, before whitening; 0 on the world's. Mean over forks."""
        reward = np.zeros(forest.tokens)
        reward[forest.start[1:][forest.action] - 1] = forest.reward[forest.action]
        if self.beta > 0:
            sampled = np.flatnonzero(np.repeat(forest.policy, forest.length))
            old = [s.logprobs for s in forest.segments if s.logprobs is not None]
            behaviour = np.concatenate(old).astype(np.float64) if old else np.zeros(0)
            reward[sampled] -= self.beta * (behaviour - noted(forest, "ref", rule=self.name, at=sampled))
        return token_gae(forest, reward, value=np.zeros(forest.tokens), gamma=self.gamma, lam=1.0)

    def __call__(self, forest: Forest) -> TokenCredit:
        """One advantage per token. Raises ValueError when beta > 0 and the reference's log-probs are missing."""
        returns = self.returns(forest)
        weight = forest.spread(np.where(forest.action, forest.up(forest.leaves), 0.0))
        return TokenCredit(advantage=_whitened(returns, weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePPBaseline:
    """Return minus the group's mean, whitened over all action tokens of the update (2501.03262)."""

    name: ClassVar[str] = "reinforce_pp_baseline"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "batch"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout; its tokens all have it."""
        tokens = forest.rollout_tokens.astype(np.float64)
        return PathCredit(advantage=_whitened(center(forest.returns, forest.rollout_group), tokens))


def _whitened(x: Column, weight: Column) -> Column:
    mean, variance, _ = moments(x, np.zeros(len(x), dtype=np.int64), weight, ddof=1)
    return np.asarray((x - mean) / np.sqrt(variance + EPS), dtype=np.float64)
