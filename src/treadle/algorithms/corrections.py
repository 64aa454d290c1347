"""Off-policy corrections: what a token of an older policy counts.

u = new / proximal is what the loss clips, w = proximal / behaviour is what is truncated or masked here: a plain weight
without a gradient. The default proximal policy is the behaviour policy; then w is 1 and there is nothing to correct, so
a correction needs a `prox` column: log-probs under the weights that the update begins with, one more forward. Only
`reinforce` has no u; there w = sg(new / behaviour), from the forward that trains.

A correction of tokens acts on edges, a correction of sequences on whole rollouts, before credit is collapsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from treadle.algorithms.loss import MOST_LOG_RATIO, LossTerms
from treadle.algorithms.losses_sequence import behaviour, path_sums
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest


class Correction(Protocol):
    """Weights for tokens or rollouts of an older policy."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    """`prox` when it cannot do without that note."""

    def on_edges(self, new: Tensor, terms: LossTerms) -> LossTerms:
        """The terms with A+ and A- weighed. `new` [E] are log-probs of now, without a gradient."""
        ...

    def on_rollouts(self, forest: Forest) -> Column:
        """[R] weight of each rollout, >= 0."""
        ...


class _OfTokens:
    """Weighs edges by a function of w."""

    __slots__ = ()

    def weight(self, ratio: Tensor) -> Tensor:
        """[E] weights of the ratios w [E]."""
        raise NotImplementedError

    def on_edges(self, new: Tensor, terms: LossTerms) -> LossTerms:
        """A+ and A- times the weight of proximal / behaviour, or of new / behaviour without a proximal policy."""
        near = new if terms.prox is None else terms.prox
        weight = self.weight((near - terms.old).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp())
        return replace(terms, pos_w=terms.pos_w * weight, neg_w=terms.neg_w * weight)

    def on_rollouts(self, forest: Forest) -> Column:
        """1 each."""
        return np.ones(len(forest.rollouts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tis(_OfTokens):
    """Truncated importance sampling: min(w, cap)."""

    name: ClassVar[str] = "tis"
    needs: ClassVar[frozenset[str]] = frozenset()

    cap: float = 2.0

    def __post_init__(self) -> None:
        _above(f"{self.name}.cap", self.cap)

    def weight(self, ratio: Tensor) -> Tensor:
        """min(w, cap)"""
        return ratio.clamp(max=self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Icepop(_OfTokens):
    """w within low .. high, else 0: what is far off teaches nothing."""

    name: ClassVar[str] = "icepop"
    needs: ClassVar[frozenset[str]] = frozenset()

    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        _above(f"{self.name}.high", self.high)
        if not 0 < self.low < 1:
            raise ConfigError(f"icepop.low: got {self.low}, expected 0 < low < 1")

    def weight(self, ratio: Tensor) -> Tensor:
        """w or 0."""
        return ratio * ((ratio >= self.low) & (ratio <= self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled(_OfTokens):
    """Decoupled PPO: the loss clips new / proximal, w = proximal / behaviour is truncated (2110.00641)."""

    name: ClassVar[str] = "decoupled"
    needs: ClassVar[frozenset[str]] = frozenset({"prox"})

    cap: float = 5.0

    def __post_init__(self) -> None:
        _above(f"{self.name}.cap", self.cap)

    def weight(self, ratio: Tensor) -> Tensor:
        """min(w, cap)"""
        return ratio.clamp(max=self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMask:
    """A rollout whose product of w over all its tokens is over the cap trains nothing; the others count 1."""

    name: ClassVar[str] = "sequence_mask"
    needs: ClassVar[frozenset[str]] = frozenset({"prox"})

    cap: float = 3.0
    """Most product that trains."""
    low: float = 0.0
    """Least product that trains; 0 asks for none."""

    def __post_init__(self) -> None:
        _above(f"{self.name}.cap", self.cap)
        if not 0 <= self.low < 1:
            raise ConfigError(f"sequence_mask.low: got {self.low}, expected 0 <= low < 1")

    def on_edges(self, new: Tensor, terms: LossTerms) -> LossTerms:
        """As they are."""
        return terms

    def on_rollouts(self, forest: Forest) -> Column:
        """1 or 0."""
        total, _ = path_sums(forest, forest.note("prox") - behaviour(forest))
        ratio = np.exp(np.clip(total, -MOST_LOG_RATIO, MOST_LOG_RATIO))
        return np.where((ratio <= self.cap) & (ratio >= self.low), 1.0, 0.0)


def _above(key: str, value: float) -> None:
    if not value > 1:
        raise ConfigError(f"{key}: got {value}, expected > 1")


CORRECTIONS: Mapping[str, type[Correction]] = {kind.name: kind for kind in (Tis, Icepop, Decoupled, SequenceMask)}
