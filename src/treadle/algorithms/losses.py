"""Losses: from new log-probs and collapsed credit to one scalar.

A loss is a sum over loss edges divided by a denominator that is fixed for the whole update. So the loss of a batch
is the sum of the losses of any partition of it, and the learner calls it on runs of edges as it goes: an edge's term
may depend on nothing but that edge. Whatever couples tokens (a ratio of a whole completion) is brought into this
form by a first pass that turns it into a weight per edge.

Behaviour log-probs are those recorded by the engine that sampled the token; they are both the proximal and the
behaviour policy, so there is one ratio and it is always clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from treadle.core.errors import ConfigError

MOST_LOG_RATIO = 20.0
"""Log-ratios are cut here before exp. Far outside every clip range, so no gradient changes; exp stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTerms:
    """What a loss knows about E edges besides the new log-probs."""

    old: Tensor
    """[E] behaviour log-prob of the target; NaN where nobody sampled it."""
    pos_w: Tensor
    """[E] A+ of the target's segment."""
    neg_w: Tensor
    """[E] A- of the target's segment."""
    mass: Tensor
    """[E] mass of the target's segment."""
    denominator: float
    """The update's denominator, the same for all its packs."""
    prox: Tensor | None = None
    """[E] log-prob under the proximal policy, from which ratios are taken; None when that is the behaviour policy."""
    ref: Tensor | None = None
    """[E] log-prob under the reference policy; None when nobody asked for it."""
    value_old: Tensor | None = None
    """[E] value of the state before the target, as it was before this update; None without a value function."""
    ret: Tensor | None = None
    """[E] sum of mass * return over the tokens that the edge stands for, where they have one; None without values."""
    ret_mass: Tensor | None = None
    """[E] mass of those tokens, 0 where none has a return: ret / ret_mass is what a value function should say."""

    @property
    def anchor(self) -> Tensor:
        """[E] log-probs that ratios are taken from: the proximal policy's, else the behaviour policy's."""
        return self.old if self.prox is None else self.prox

    def at(self, edges: Tensor | slice) -> LossTerms:
        """The terms of these edges."""
        return self.through(lambda column: column[edges])

    def part(self, start: int, stop: int) -> LossTerms:
        """The terms of edges start .. stop (exclusive)."""
        return self.at(slice(start, stop))

    def to(self, device: torch.device, dtype: torch.dtype) -> LossTerms:
        """The same terms on a device, in the dtype of the log-probs."""
        return self.through(lambda column: column.to(device, dtype))

    def through(self, change: Callable[[Tensor], Tensor]) -> LossTerms:
        """The terms with every column changed alike."""

        def maybe(column: Tensor | None) -> Tensor | None:
            return None if column is None else change(column)

        return LossTerms(
            old=change(self.old), pos_w=change(self.pos_w), neg_w=change(self.neg_w), mass=change(self.mass),
            denominator=self.denominator, prox=maybe(self.prox), ref=maybe(self.ref),
            value_old=maybe(self.value_old), ret=maybe(self.ret), ret_mass=maybe(self.ret_mass),
        )


class Loss(Protocol):
    """A sum over edges, each edge on its own."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    """`old` when every edge must have a behaviour log-prob."""

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar: the sum over the edges of `logp` [E], divided by the denominator."""
        ...

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Sums over the edges; divided by the number of edges they are what a person reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Nll:
    """- mass * log-prob: imitation. Advantages are not looked at."""

    name: ClassVar[str] = "nll"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        return -(terms.mass * logp).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Negative log-likelihood in nats."""
        return {"nll": -float(logp.sum())}


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

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar."""
        ratio = _ratio(logp, terms)
        up = ratio.clamp(max=1 + self.eps_high)
        down = ratio.clamp(min=1 - self.eps_low, max=self.dual)
        return -(terms.pos_w * up + terms.neg_w * down).sum() / terms.denominator

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Shares of clipped edges, the mean ratio and the k3 estimate of KL(behaviour || new) in nats."""
        ratio = _ratio(logp, terms)
        clipped = (terms.pos_w > 0) & (ratio > 1 + self.eps_high) | (terms.neg_w < 0) & (ratio < 1 - self.eps_low)
        dual = (terms.neg_w < 0) & (ratio > (torch.inf if self.dual is None else self.dual))
        return {
            "clip_share": float(clipped.sum()),
            "dual_clip_share": float(dual.sum()),
            "ratio": float(ratio.sum()),
            "kl": float((ratio - 1 - (logp - terms.old)).sum()),
            "nll": -float(logp.sum()),
        }


def _ratio(logp: Tensor, terms: LossTerms) -> Tensor:
    return (logp - terms.old).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()


LOSSES: Mapping[str, type[Loss]] = {kind.name: kind for kind in (Nll, PpoClip)}
