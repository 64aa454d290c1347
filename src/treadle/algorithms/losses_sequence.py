"""Sequence losses: the ratio of a whole rollout, in two passes.

The ratio of a rollout couples all its tokens, and on a tree a token belongs to several rollouts, which may lie in
several packs. So the loss is brought into a form of one edge at a time by a first pass, forward only. It gives the new
log-prob of every token (the note `new`), hence S_p of every rollout p, hence

    dL / dlogp_t = c_t = sum_p dL/dS_p dS_p/dlogp_t

and the second pass is the sum of c_t log p_t: exact for any partition into packs. As c_t is the token's credit times a
factor of each rollout through it, the first pass ends in two factors per rollout, one for each sign of the advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from treadle.algorithms.credit import Factors
from treadle.algorithms.loss import MOST_LOG_RATIO, LossTerms
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest

NEW = "new"
"""Note: log-probs under the weights that the update begins with."""


class SequenceLoss:
    """A loss with a first pass."""

    __slots__ = ()

    def factors(self, forest: Forest) -> Factors:
        """From the log-probs in the forest's notes. Raises ValueError when a note is missing."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(SequenceLoss):
    """Clips s = exp(mean over the rollout's sampled tokens of log new - log proximal) (2507.18071).

    Per rollout the loss is - tokens * w * min(s A, clip(s) A) with the aggregation's weight w: with
    `seq_mean_token_mean` that is the published one. Where advantages differ within a rollout, every token takes its own
    with the rollout's ratio (the paper's GSPO-token).
    """

    name: ClassVar[str] = "gspo"
    needs: ClassVar[frozenset[str]] = frozenset({"old", NEW})

    eps_low: float = 3e-4
    """A negative advantage earns nothing below 1 - eps_low. Ratios of whole rollouts are near 1."""
    eps_high: float = 4e-4
    """A positive advantage earns nothing above 1 + eps_high."""
    dual: float | None = 3.0
    """Most ratio that a negative advantage is weighed with; None for no such bound."""

    def __post_init__(self) -> None:
        if not 0 < self.eps_low < 1:
            raise ConfigError(f"gspo.eps_low: got {self.eps_low}, expected 0 < eps_low < 1")
        if not self.eps_high > 0:
            raise ConfigError(f"gspo.eps_high: got {self.eps_high}, expected > 0")
        if self.dual is not None and not self.dual > 1:
            raise ConfigError(f"gspo.dual: got {self.dual}, expected > 1 or none")

    @property
    def bounded(self) -> bool:
        """Only the dual clip bounds the ratio of a bad rollout."""
        return self.dual is not None

    def factors(self, forest: Forest) -> Factors:
        """s where it has a gradient, else 0."""
        near = forest.notes["prox"] if "prox" in forest.notes else behaviour(forest)
        total, tokens = path_sums(forest, forest.note(NEW) - near)
        ratio = np.exp(np.clip(total / np.maximum(tokens, 1), -MOST_LOG_RATIO, MOST_LOG_RATIO))
        most = np.inf if self.dual is None else self.dual
        return Factors(
            pos=np.where(ratio <= 1 + self.eps_high, ratio, 0.0),
            neg=np.where((ratio >= 1 - self.eps_low) & (ratio <= most), ratio, 0.0),
        )

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar: its gradient by each log-prob is the edge's weight."""
        own = (logp - logp.detach()).exp()
        return -((terms.pos_w + terms.neg_w) * own).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Share of edges that no rollout gives a weight, and the negative log-likelihood in nats."""
        idle = (terms.pos_w == 0) & (terms.neg_w == 0)
        return {"idle_share": float(idle.sum()), "nll": -float(logp.sum())}


def behaviour(forest: Forest) -> Column:
    """[T] recorded log-probs; NaN where nobody sampled."""
    return np.concatenate([
        np.full(len(s), np.nan) if s.logprobs is None else s.logprobs.astype(np.float64) for s in forest.segments
    ])


def path_sums(forest: Forest, column: Column) -> tuple[Column, Column]:
    """Sum [R] of a token column [T] over each rollout's tokens that have a number, and how many [R] those are."""
    held = forest.spread(np.where(forest.action, 1.0, 0.0)) * ~np.isnan(column)
    rows = [np.add.reduceat(part, forest.start[:-1]) for part in (np.where(held > 0, column, 0.0), held)]
    total, tokens = (forest.down(part)[forest.rollout_leaf] for part in rows)
    return total, tokens
