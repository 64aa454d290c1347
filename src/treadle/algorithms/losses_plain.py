"""Losses without a ratio: imitation and the plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from treadle.algorithms.loss import LossTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Nll:
    """- mass * log-prob: imitation. Advantages are not looked at."""

    name: ClassVar[str] = "nll"
    needs: ClassVar[frozenset[str]] = frozenset()
    bounded: ClassVar[bool] = True

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        return -(terms.mass * logp).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Negative log-likelihood in nats."""
        return {"nll": -float(logp.sum())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """- A log-prob (Williams 1992): right for tokens of this very policy.

    For older ones a correction weighs every token by sg(new / behaviour), truncated or masked.
    """

    name: ClassVar[str] = "reinforce"
    needs: ClassVar[frozenset[str]] = frozenset()
    bounded: ClassVar[bool] = False

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        return -((terms.pos_w + terms.neg_w) * logp).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Negative log-likelihood in nats."""
        return {"nll": -float(logp.sum())}
