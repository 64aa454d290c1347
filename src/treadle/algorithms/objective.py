"""The objective: a loss with what stands around it, a correction for older tokens and a KL penalty.

For the learner it is one loss. For the trainer it says which notes the forest must have (`columns`), changes rewards
before credit (`rewarded`), and collapses credit with what a first pass found (`collapse`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from treadle.algorithms.aggregation import Aggregation
from treadle.algorithms.corrections import Correction
from treadle.algorithms.credit import PATH_SUM, Collapsed, CreditRule, Factors, assign
from treadle.algorithms.kl import Kl
from treadle.algorithms.loss import Loss, LossTerms
from treadle.algorithms.losses_plain import Reinforce
from treadle.algorithms.losses_sequence import SequenceLoss
from treadle.algorithms.shared import Shared
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest

PROX = ("behaviour", "learner")
COLUMNS = frozenset({"value", "ref", "prox", "new", "answer_prob", "entropy"})
"""What a learner can compute; `old` is recorded, not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Raises ConfigError for parts that contradict each other."""

    loss: Loss
    correction: Correction | None = None
    kl: Kl | None = None
    prox: str = "behaviour"
    """`behaviour`, or `learner`: the weights that the update begins with."""

    def __post_init__(self) -> None:
        if self.prox not in PROX:
            raise ConfigError(f"algorithm.prox: got {self.prox!r}, expected one of {', '.join(PROX)}")
        correction = self.correction
        if correction is None or isinstance(self.loss, Reinforce) or "prox" in correction.needs | {self.prox}:
            return
        if self.prox != "learner":
            raise ConfigError(
                f"algorithm.correction={correction.name} contradicts algorithm.prox=behaviour: proximal / behaviour is "
                "1 everywhere; set algorithm.prox=learner (one more forward), or algorithm.loss=reinforce"
            )

    @property
    def name(self) -> str:
        """The loss's."""
        return self.loss.name

    @property
    def needs(self) -> frozenset[str]:
        """Those of the parts."""
        more = frozenset() if self.correction is None else self.correction.needs | {"old"}
        near = frozenset({"prox"}) if self.prox == "learner" else frozenset[str]()
        return self.loss.needs | more | near | (frozenset() if self.kl is None else {"ref"})

    @property
    def columns(self) -> frozenset[str]:
        """Notes that the forest must have before credit."""
        return self.needs - {"old"}

    def require_bounded(self, staleness: int) -> None:
        """Raise ConfigError for a loss that older tokens could weigh in without a limit."""
        corrected = isinstance(self.loss, Reinforce) and self.correction is not None
        if staleness and not self.loss.bounded and not corrected:
            way = "algorithm.correction=tis" if isinstance(self.loss, Reinforce) else "its bound"
            raise ConfigError(
                f"algorithm.loss={self.loss.name} contradicts a staleness of up to {staleness}: ratios of older tokens "
                f"would be unbounded; set {way}, or pipeline.lag=0 and pipeline.max_staleness=0"
            )

    def rewarded(self, forest: Forest) -> Forest:
        """The forest with a KL penalty in its rewards, if it belongs there."""
        return self.kl.rewarded(forest) if self.kl is not None and self.kl.where == "reward" else forest

    def collapse(
        self, forest: Forest, rule: CreditRule, aggregation: Aggregation, *, shared: Shared = PATH_SUM
    ) -> tuple[Collapsed, float]:
        """`assign` with the factors of a first pass. Raises ValueError as it does."""
        return assign(forest, rule, aggregation, shared=shared, factors=self._factors(forest))

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        value = self.loss(logp, self._corrected(logp, terms))
        return value + self.kl.penalty(logp, terms) if self.kl is not None and self.kl.where == "loss" else value

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """What the loss reports, the mean weight of a correction, and the KL from the reference in nats (k3)."""
        corrected = self._corrected(logp, terms)
        out = self.loss.report(logp, corrected)
        if self.correction is not None:
            before, after = terms.pos_w - terms.neg_w, corrected.pos_w - corrected.neg_w
            share = after / before.where(before > 0, before.new_ones(()))
            out["correction"] = float(share.where(before > 0, share.new_ones(())).sum())
        if terms.ref is not None:
            out["kl_ref"] = float(Kl(estimate="k3").of(logp - terms.ref).sum())
        return out

    def _corrected(self, logp: Tensor, terms: LossTerms) -> LossTerms:
        return terms if self.correction is None else self.correction.on_edges(logp.detach(), terms)

    def _factors(self, forest: Forest) -> Factors | None:
        found = self.loss.factors(forest) if isinstance(self.loss, SequenceLoss) else None
        if self.correction is None:
            return found
        weight = self.correction.on_rollouts(forest)
        ones = np.ones(len(forest.rollouts))
        found = found or Factors(pos=ones, neg=ones)
        return Factors(pos=weight * found.pos, neg=weight * found.neg)
