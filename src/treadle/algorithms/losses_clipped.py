"""Losses that bound how far one update may move a token, each in its own way.

u = new / proximal is the ratio of a token, A+ and A- its collapsed credit. All are positively homogeneous in the
advantage for each sign, so one edge may stand for any number of rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from treadle.algorithms.loss import LossTerms, ratio_of
from treadle.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoClip:
    """Clipped ratio with a dual clip (1707.06347, 1912.09729; asymmetric range 2503.14476).

    r = new / behaviour; gain = A+ min(r, 1 + eps_high) + A- min(max(r, 1 - eps_low), dual); the loss is
    - sum gain / denominator.
    """

    name: ClassVar[str] = "ppo_clip"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})

    eps_low: float = 0.2
    """The ratio of a token with a negative advantage earns nothing below 1 - eps_low."""
    eps_high: float = 0.28
    """The ratio of a token with a positive advantage earns nothing above 1 + eps_high."""
    dual: float | None = 3.0
    """Most ratio of a token with a negative advantage; None for no such bound."""

    def __post_init__(self) -> None:
        if not 0 < self.eps_low < 1:
            raise ConfigError(f"ppo_clip.eps_low: got {self.eps_low}, expected 0 < eps_low < 1")
        if not self.eps_high > 0:
            raise ConfigError(f"ppo_clip.eps_high: got {self.eps_high}, expected > 0")
        if self.dual is not None and not self.dual > 1:
            raise ConfigError(f"ppo_clip.dual: got {self.dual}, expected > 1 or None")

    @property
    def bounded(self) -> bool:
        """Only the dual clip bounds the ratio of a bad token."""
        return self.dual is not None

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        ratio = ratio_of(logp, terms)
        up = ratio.clamp(max=1 + self.eps_high)
        down = ratio.clamp(min=1 - self.eps_low, max=self.dual)
        return -(terms.pos_w * up + terms.neg_w * down).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Shares of clipped edges, the mean ratio and the k3 estimate of KL(proximal || new) in nats."""
        ratio = ratio_of(logp, terms)
        clipped = (terms.pos_w > 0) & (ratio > 1 + self.eps_high) | (terms.neg_w < 0) & (ratio < 1 - self.eps_low)
        dual = (terms.neg_w < 0) & (ratio > (torch.inf if self.dual is None else self.dual))
        return {
            "clip_share": float(clipped.sum()),
            "dual_clip_share": float(dual.sum()),
            "ratio": float(ratio.sum()),
            "kl": float((ratio - 1 - (logp - terms.anchor)).sum()),
            "nll": -float(logp.sum()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """- sg(clip(u)) A log-prob: the clipped ratio is a weight, so that no token loses its gradient (2506.13585)."""

    name: ClassVar[str] = "cispo"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})
    bounded: ClassVar[bool] = True

    eps_low: float = 0.2
    """Least weight is 1 - eps_low."""
    eps_high: float = 0.28
    """Most weight is 1 + eps_high."""

    def __post_init__(self) -> None:
        if not 0 < self.eps_low <= 1:
            raise ConfigError(f"cispo.eps_low: got {self.eps_low}, expected 0 < eps_low <= 1")
        if not self.eps_high > 0:
            raise ConfigError(f"cispo.eps_high: got {self.eps_high}, expected > 0")

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        weight = ratio_of(logp.detach(), terms).clamp(1 - self.eps_low, 1 + self.eps_high)
        return -((terms.pos_w + terms.neg_w) * weight * logp).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Share of edges whose weight was clipped, the mean ratio and the negative log-likelihood in nats."""
        ratio = ratio_of(logp, terms)
        outside = (ratio > 1 + self.eps_high) | (ratio < 1 - self.eps_low)
        return {"clip_share": float(outside.sum()), "ratio": float(ratio.sum()), "nll": -float(logp.sum())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo:
    """A soft gate in place of the clip: - A 4 / tau sigmoid(tau (u - 1)), with a tau for each sign (2511.20347)."""

    name: ClassVar[str] = "sapo"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})
    bounded: ClassVar[bool] = True

    tau_pos: float = 1.0
    """How fast the gate of a token with a positive advantage closes."""
    tau_neg: float = 1.05
    """The same for negative advantages; larger closes earlier."""

    def __post_init__(self) -> None:
        for key, value in (("tau_pos", self.tau_pos), ("tau_neg", self.tau_neg)):
            if not value > 0:
                raise ConfigError(f"sapo.{key}: got {value}, expected > 0")

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        ratio = ratio_of(logp, terms)
        gain = terms.pos_w * _gate(ratio, self.tau_pos) + terms.neg_w * _gate(ratio, self.tau_neg)
        return -gain.sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """The mean ratio and the negative log-likelihood in nats."""
        return {"ratio": float(ratio_of(logp, terms).sum()), "nll": -float(logp.sum())}


@dataclass(frozen=True, slots=True, kw_only=True)
class DppoTv:
    """The ratio, masked where the token's probability moved too far: - A u [keep] (DPPO with total variation).

    keep is false for A > 0 where p - mu > delta and for A < 0 where mu - p > delta, p being the new probability and mu
    the proximal one. A rare token's ratio is not bounded by that; `cap` bounds it.
    """

    name: ClassVar[str] = "dppo_tv"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})

    delta: float = 0.2
    """Most change of a token's probability in the direction that its advantage asks for."""
    cap: float | None = None
    """Most ratio; None bounds nothing, which only a run without stale tokens may do."""

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"dppo_tv.delta: got {self.delta}, expected 0 < delta < 1")
        if self.cap is not None and not self.cap > 1:
            raise ConfigError(f"dppo_tv.cap: got {self.cap}, expected > 1 or none")

    @property
    def bounded(self) -> bool:
        """The mask alone bounds no ratio."""
        return self.cap is not None

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        up, down = self._keeps(logp, terms)
        ratio = ratio_of(logp, terms).clamp(max=torch.inf if self.cap is None else self.cap)
        return -((terms.pos_w * up + terms.neg_w * down) * ratio).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Share of masked edges, the mean ratio and the negative log-likelihood in nats."""
        up, down = self._keeps(logp, terms)
        masked = (terms.pos_w > 0) & ~up | (terms.neg_w < 0) & ~down
        return {
            "mask_share": float(masked.sum()), "ratio": float(ratio_of(logp, terms).sum()), "nll": -float(logp.sum()),
        }

    def _keeps(self, logp: Tensor, terms: LossTerms) -> tuple[Tensor, Tensor]:
        """bool[E] whether a positive, and whether a negative, advantage still counts."""
        moved = logp.detach().exp() - terms.anchor.exp()
        return moved <= self.delta, -moved <= self.delta


def _gate(ratio: Tensor, tau: float) -> Tensor:
    return torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
