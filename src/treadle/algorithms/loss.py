"""The loss: from new log-probs and collapsed credit to one scalar.

A loss is a sum over loss edges divided by a denominator that is fixed for the whole update. So the loss of a batch
is the sum of the losses of any partition of it, and the learner calls it on runs of edges as it goes: an edge's term
may depend on nothing but that edge. Whatever couples tokens (a ratio of a whole completion) is brought into this
form by a first pass that turns it into a weight per edge.

Three policies may stand in a term. *Behaviour* sampled the token: its log-prob is the one that the engine recorded.
*Proximal* is what the new policy must stay near to: u = new / proximal is what a loss clips. By default it is the
behaviour policy, so that there is one ratio. *Reference* is what a KL penalty pulls to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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


class EdgeLoss(Protocol):
    """A sum over edges, each edge on its own: all that a learner knows of losses."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """`old` when every edge must have a behaviour log-prob; names of the forest's notes that it reads."""
        ...

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        """Scalar: the sum over the edges of `logp` [E], divided by the denominator."""
        ...

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        """Sums over the edges; divided by the number of edges they are what a person reads."""
        ...


class Loss(EdgeLoss, Protocol):
    """A loss that a recipe names."""

    @property
    def bounded(self) -> bool:
        """Whether no token's weight grows without limit as the policy moves away from the one that sampled it."""
        ...


def ratio_of(logp: Tensor, terms: LossTerms) -> Tensor:
    """[E] u = new / proximal, finite."""
    return (logp - terms.anchor).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
