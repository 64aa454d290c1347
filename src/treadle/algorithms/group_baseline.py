"""Rules that compare the rollouts of one group: the return minus a baseline of its siblings.

The return of a rollout is the sum of the rewards on its actions in time. Groups never mix, whatever else is in the
update, and a group in which all returns are equal gives 0 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.algorithms.credit import PathCredit, Scope
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest, center


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """(R - mean) / (sample standard deviation + eps) within the group (2402.03300)."""

    name: ClassVar[str] = "grpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
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
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        return PathCredit(advantage=center(forest.returns, forest.rollout_group, loo=True))
