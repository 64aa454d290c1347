"""Rules that compare the rollouts of one group: the return minus a baseline of its siblings.

The return of a rollout is the sum of the rewards on its actions in time. Groups never mix, whatever else is in the
update, and a group in which all returns are equal gives 0 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, PathCredit, Scope
from treadle.algorithms.demanded import lacks
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest, center


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """(R - mean) / (sample standard deviation + eps) within the group (2402.03300)."""

    name: ClassVar[str] = "grpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    std: bool = True
    """False leaves out the division."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"grpo.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        return PathCredit(advantage=center(forest.returns, forest.rollout_group, std=self.std, eps=self.eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo:
    """R - mean within the group; goes with a constant denominator, `SeqSumConst` (2503.20783)."""

    name: ClassVar[str] = "dr_grpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        return PathCredit(advantage=center(forest.returns, forest.rollout_group))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo:
    """R minus the mean of the other rollouts of the group (2402.14740)."""

    name: ClassVar[str] = "rloo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        return PathCredit(advantage=center(forest.returns, forest.rollout_group, loo=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opo:
    """R minus the mean return of the group, each rollout weighing as many action tokens as it has (2505.23585)."""

    name: ClassVar[str] = "opo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        group, tokens = forest.rollout_group, forest.rollout_tokens.astype(np.float64)
        total = np.bincount(group, weights=tokens, minlength=len(forest.keys))
        earned = np.bincount(group, weights=tokens * forest.returns, minlength=len(forest.keys))
        return PathCredit(advantage=forest.returns - (earned / np.maximum(total, 1.0))[group])


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRl:
    """(R - mean) / (mean + eps) within the group, for returns >= 0: rare success counts more (2602.02710)."""

    name: ClassVar[str] = "max_rl"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    eps: float = 1e-6
    """Added to the mean, in units of reward."""

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"max_rl.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout. Raises ValueError for a return below 0."""
        returns, group = forest.returns, forest.rollout_group
        if (least := float(returns.min(initial=0.0))) < 0:
            raise lacks(
                self.name, got=f"a return of {least:g}", expected="returns >= 0",
                todo="leave what takes away out of rewards.train, or choose grpo",
            )
        count = np.maximum(np.bincount(group, minlength=len(forest.keys)), 1)
        mean = np.bincount(group, weights=returns, minlength=len(forest.keys)) / count
        return PathCredit(advantage=center(returns, group) / (mean[group] + self.eps))
