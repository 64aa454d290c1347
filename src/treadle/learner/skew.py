"""The skew meter: do engine and learner hold the same policy?

A token that the learner's own version sampled has, but for rounding, the log-prob that was recorded for it. The first
forward of an update computes it anyway, so every batch of fresh samples measures the distance at no cost. It sees what
no checksum does: another temperature, a stale cache, a kernel that is wrong in one case.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from treadle.core.errors import WeightMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Differences |recorded - own| of log-probs, in nats, over the loss edges that were sampled."""

    mean: float
    most: float
    edges: int


class SkewMeter:
    """Adds up one update."""

    def __init__(self) -> None:
        self._total, self._most, self._edges = 0.0, 0.0, 0

    def add(self, logp: Tensor, old: Tensor) -> None:
        """The learner's own and the recorded log-probs of a pack. float[E]; edges that nobody sampled are NaN."""
        apart = (logp.detach() - old).abs().double()
        apart = apart[~old.isnan()]
        if len(apart):
            self._total += float(apart.sum())
            self._most = max(self._most, float(apart.max()))
            self._edges += len(apart)

    def read(self) -> Skew | None:
        """What was added; None when nothing was sampled."""
        if not self._edges:
            return None
        return Skew(mean=self._total / self._edges, most=self._most, edges=self._edges)


def require(skew: Skew, *, bound: float, version: int) -> None:
    """Raise WeightMismatch when the mean is over the bound, or is no number."""
    if not skew.mean <= bound:
        raise WeightMismatch(
            f"skew at policy version {version}: recorded log-probs differ from the learner's own by {skew.mean:.3g} "
            f"nats on average and {skew.most:.3g} at most over {skew.edges} tokens, expected at most learner.max_skew="
            f"{bound:g} on average; the engine does not sample from the learner's policy, or the bound is too small "
            "for the number format of the weights"
        )
