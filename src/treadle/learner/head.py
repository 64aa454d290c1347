"""The output head on loss edges: log-probs, loss and gradients without ever holding all logits.

The logits of E edges over a vocabulary of V would be the largest tensor of an update by far. A loss is a sum over
edges, so nothing needs them all at once: a run of rows goes through the head, its log-probs give the loss and the
loss's gradient, and the same buffer becomes the gradient of the logits, in place. Per run there are three matrix
products (logits, gradient of the states, gradient of the weight) and nothing is computed twice.

A plain linear head, which is what nearly every model has, takes this path. Any other head (bias, scaling, soft-cap)
goes through autograd, run by run, and so does one in half precision, whose exponentials must not be kept in it. Its
logits are made float32 for the softmax, and log-probs and losses are float32 throughout.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from treadle.algorithms.loss import EdgeLoss as Loss
from treadle.algorithms.loss import LossTerms
from treadle.models.linear import multiply
from treadle.models.policy import Policy

EXACT = (torch.float32, torch.float64)
CACHED_ROWS = 32
"""Rows whose logits are worked on together after the product: few enough to stay in a processor's cache."""


class Head:
    """The policy's output head, as the learner uses it."""

    def __init__(self, policy: Policy, *, rows: int, temperature: float) -> None:
        self._policy = policy
        self._rows = rows
        self._temperature = temperature
        self._weight = _exact_weight(policy)
        self.dtype = policy.weight_dtype if policy.weight_dtype in EXACT else torch.float32
        """The number format of log-probs and losses."""

    def logprobs(self, states: Tensor, targets: Tensor) -> Tensor:
        """log p(target) per edge, [E], without gradients. states [E, hidden], targets long[E]."""
        with torch.no_grad():
            parts = [self._plain(states[a:b], targets[a:b]) for a, b in _runs(len(targets), self._rows)]
        return torch.cat(parts) if parts else states.new_zeros(0, dtype=self.dtype)

    def entropies(self, states: Tensor) -> Tensor:
        """Entropy in nats of what may follow each state, [E], without gradients. states [E, hidden]."""

        def of(run: Tensor) -> Tensor:
            logp = self._logits(run).log_softmax(1)
            return -(logp.exp() * logp).sum(1)

        with torch.no_grad():
            parts = [of(states[a:b]) for a, b in _runs(len(states), self._rows)]
        return torch.cat(parts) if parts else states.new_zeros(0, dtype=self.dtype)

    def backward(self, states: Tensor, targets: Tensor, terms: LossTerms, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """Adds the weight gradient of a head that trains.

        Returns the loss (scalar), the gradient of the states [E, hidden] and the log-probs [E].
        """
        grad = torch.empty_like(states)
        logp = states.new_empty(len(targets), dtype=self.dtype)
        total = states.new_zeros((), dtype=self.dtype)
        step = self._by_autograd if self._weight is None else self._in_place
        for a, b in _runs(len(targets), self._rows):
            value, grad[a:b], logp[a:b] = step(states[a:b], targets[a:b], terms.part(a, b), loss)
            total += value
        return total, grad, logp

    def _plain(self, states: Tensor, targets: Tensor) -> Tensor:
        return _gather(self._logits(states), targets)

    def _logits(self, states: Tensor) -> Tensor:
        return self._policy.logits(states).to(self.dtype) / self._temperature

    def _by_autograd(
        self, states: Tensor, targets: Tensor, terms: LossTerms, loss: Loss
    ) -> tuple[Tensor, Tensor, Tensor]:
        leaf = states.detach().requires_grad_()
        logp = _gather(self._logits(leaf), targets)
        value = loss(logp, terms)
        value.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return value.detach(), leaf.grad, logp.detach()

    @torch.no_grad()
    def _in_place(
        self, states: Tensor, targets: Tensor, terms: LossTerms, loss: Loss
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = self._weight
        assert weight is not None
        logits = multiply(states, weight)  # [e, V]
        logp = states.new_empty(len(targets))
        total = states.new_zeros(())
        for a, b in _runs(len(targets), CACHED_ROWS):
            block, target = logits[a:b], targets[a:b, None]
            if self._temperature != 1:
                block /= self._temperature
            top = block.amax(1, keepdim=True)
            chosen = block.gather(1, target) - top
            block.sub_(top).exp_()
            mass = block.sum(1, keepdim=True)
            logp[a:b] = (chosen - mass.log())[:, 0]
            value, slope = _slope(loss, logp[a:b], terms.part(a, b))
            total += value
            slope = slope[:, None] / self._temperature
            block.mul_(-slope / mass)
            block.scatter_add_(1, target, slope)
        if weight.requires_grad:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.addmm_(logits.T, states)
        return total, multiply(logits, weight.T), logp


def _slope(loss: Loss, logp: Tensor, terms: LossTerms) -> tuple[Tensor, Tensor]:
    """The loss of these edges and its derivative by each log-prob."""
    with torch.enable_grad():
        leaf = logp.detach().requires_grad_()
        value = loss(leaf, terms)
        (slope,) = torch.autograd.grad(value, leaf)
    return value.detach(), slope


def _gather(logits: Tensor, targets: Tensor) -> Tensor:
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return chosen - torch.logsumexp(logits, dim=1)


def _runs(count: int, size: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + size, count)) for a in range(0, count, size))


def _exact_weight(policy: Policy) -> Tensor | None:
    """[V, hidden] of a head that is nothing but a product, in a precision to add up in; else None."""
    weight = policy.head_weight
    return weight if weight is not None and weight.dtype in EXACT else None
