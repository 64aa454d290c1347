"""Aggregation: how per-token terms become one loss, as a weight per rollout and one denominator.

Both are computed once per update, after every filter, over all groups that train: the loss is the weighted sum of
token terms divided by the denominator, whatever packs or micro-batches the sum is taken in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest


class Aggregation(Protocol):
    """Weights of rollouts and the denominator of the loss."""

    name: ClassVar[str]
    constant_denominator: ClassVar[bool]
    """Whether the denominator is the same in every update, whatever was sampled, and every rollout weighs the same."""

    def weights(self, forest: Forest) -> tuple[Column, float]:
        """Weight per rollout [R], >= 0, and the denominator, > 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMean:
    """Every action token of the update counts the same (2503.14476)."""

    name: ClassVar[str] = "token_mean"
    constant_denominator: ClassVar[bool] = False

    def weights(self, forest: Forest) -> tuple[Column, float]:
        """1 per rollout; the action tokens of all rollouts."""
        return np.ones(len(forest.rollouts)), float(max(forest.rollout_tokens.sum(), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqMeanTokenMean:
    """Every rollout counts the same; within a rollout every action token does (2402.03300)."""

    name: ClassVar[str] = "seq_mean_token_mean"
    constant_denominator: ClassVar[bool] = False

    def weights(self, forest: Forest) -> tuple[Column, float]:
        """1 / action tokens of the rollout; the number of rollouts."""
        return 1.0 / np.maximum(forest.rollout_tokens, 1), float(max(len(forest.rollouts), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqSumConst:
    """Sums over tokens and rollouts divided by a constant: no length bias at all (2503.20783)."""

    name: ClassVar[str] = "seq_sum_const"
    constant_denominator: ClassVar[bool] = True
    constant: float
    """The denominator, the same in every update: rollouts per update times the most tokens of one is customary."""

    def __post_init__(self) -> None:
        if not self.constant > 0:
            raise ConfigError(f"aggregation.constant: got {self.constant}, expected > 0")

    def weights(self, forest: Forest) -> tuple[Column, float]:
        """1 per rollout; the constant."""
        return np.ones(len(forest.rollouts)), float(self.constant)


AGGREGATIONS: Mapping[str, type[Aggregation]] = {
    kind.name: kind for kind in (TokenMean, SeqMeanTokenMean, SeqSumConst)
}
