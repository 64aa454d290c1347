"""Attention over a tree of tokens in as few dense calls as it has blocks, without copying a key.

Tokens lie in pre-order, so both sides of every block of the mask are runs of neighbours: a node's tokens see themselves
causally, and whatever lies below a node, which follows it at once, sees all of the node. One call for each of the two
and every node computes exactly the pairs that the tree has, on slices of the tensors as they are.

A query that sees keys in several calls takes their mean, weighted by what each call's scores sum to (its log-sum-exp).
Going back, a call needs nothing of the other calls but that: with the output and the log-sum-exp of *all* calls, the
backward of a flash attention (2205.14135) gives its own share of each gradient, and shares add up.

The same calls do for a run of tokens whose earlier keys were computed before: a `Shelf` keeps keys and values of a
whole pack, by layer, and collects their gradients. `chunks` makes use of it.

What computes a call is a matter of the device (see `kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from treadle.learner.kernels import HALF, Kernel
from treadle.learner.tree import Node


@dataclass(frozen=True, slots=True)
class Span:
    """One block of the mask: these queries see these keys."""

    queries: slice
    keys: slice
    causal: bool
    """Each sees those up to its own place, of as many; else all see all."""


def spans(nodes: Sequence[Node], first: int, last: int) -> list[Span]:
    """The blocks of queries first .. last (exclusive), which are counted from `first`; keys are counted from 0.

    Causal blocks come first; together they hold every query once.
    """
    ends = [node.start + node.length for node in nodes]
    for number in range(len(nodes) - 1, -1, -1):
        if nodes[number].parent >= 0:
            ends[nodes[number].parent] = max(ends[nodes[number].parent], ends[number])
    own, others = list[Span](), list[Span]()
    for node, end in zip(nodes, ends, strict=True):
        stop = node.start + node.length
        a, b = max(node.start, first), min(stop, last)
        if a < b:
            queries = slice(a - first, b - first)
            own.append(Span(queries, slice(a, b), True))
            if node.start < a:
                others.append(Span(queries, slice(node.start, a), False))
        a, b = max(stop, first), min(end, last)
        if a < b:
            others.append(Span(slice(a - first, b - first), slice(node.start, stop), False))
    return own + others


class Shelf:
    """Keys and values of a pack's tokens by layer, as runs of tokens compute them, and the gradients they are owed."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        self._owed: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, layer: int, run: slice, k: Tensor, v: Tensor) -> None:
        """Keep keys and values [1, Hk, n, D] of a run."""
        if layer not in self._held:
            self._held[layer] = self._empty(k), self._empty(v)
        keys, values = self._held[layer]
        keys[:, :, run] = k
        values[:, :, run] = v

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """[1, Hk, T, D] each."""
        return self._held[layer]

    def owed(self, layer: int) -> tuple[Tensor, Tensor]:
        """Gradients of the same, to be added to."""
        if layer not in self._owed:
            keys, values = self._held[layer]
            self._owed[layer] = torch.zeros_like(keys), torch.zeros_like(values)
        return self._owed[layer]

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(like.shape[0], like.shape[1], self._tokens, like.shape[3])


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """What one forward asks of every layer."""

    spans: Sequence[Span]
    kernel: Kernel
    shelf: Shelf | None = None
    """Where keys and values of other runs are; None when all of them come with the call."""
    run: slice | None = None
    """With a shelf: the tokens of this forward."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]. See `AttentionPlan`."""
        out: Tensor = _Attend.apply(q, k, v, self, layer, scale)  # type: ignore[no-untyped-call]
        return out


class _Attend(torch.autograd.Function):
    """All calls of one layer."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, calls: Calls, layer: int, scale: float) -> Tensor:
        """[1, T, Hq, D]."""
        keys, values = k, v
        if calls.shelf is not None and calls.run is not None:
            calls.shelf.put(layer, calls.run, k, v)
            keys, values = calls.shelf.held(layer)
        out, lse = _joined(q, keys, values, calls, scale)
        ctx.calls, ctx.layer, ctx.scale = calls, layer, scale
        ctx.save_for_backward(*((q, out, lse) if calls.shelf is not None else (q, out, lse, k, v)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Of q, k and v."""
        calls, scale = ctx.calls, ctx.scale
        q, out, lse, *rest = ctx.saved_tensors
        keys, values = rest if calls.shelf is None else calls.shelf.held(ctx.layer)
        of_q = torch.zeros_like(q)
        of_k, of_v = (
            (torch.zeros_like(keys), torch.zeros_like(values)) if calls.shelf is None else calls.shelf.owed(ctx.layer)
        )
        grad, out = grad.transpose(1, 2), out.transpose(1, 2)  # [1, Hq, T, D]
        for span in calls.spans:
            at, to = span.queries, span.keys
            shares = calls.kernel.backward(
                grad[:, :, at], q[:, :, at], keys[:, :, to], values[:, :, to], out[:, :, at], lse[:, :, at],
                span.causal, scale,
            )
            of_q[:, :, at] += shares[0]
            of_k[:, :, to] += shares[1]
            of_v[:, :, to] += shares[2]
        if calls.shelf is not None:
            of_k, of_v = of_k[:, :, calls.run], of_v[:, :, calls.run]
        return of_q, of_k, of_v, None, None, None


def _joined(q: Tensor, keys: Tensor, values: Tensor, calls: Calls, scale: float) -> tuple[Tensor, Tensor]:
    """Output [1, T, Hq, D] and log-sum-exp [1, Hq, T] over all calls."""
    exact = torch.float32 if q.dtype in HALF else q.dtype
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=exact)
    lse = q.new_empty(q.shape[:3], dtype=exact)
    for span in calls.spans:
        at, to = span.queries, span.keys
        part, total = calls.kernel.forward(q[:, :, at], keys[:, :, to], values[:, :, to], span.causal, scale)
        part = part.transpose(1, 2)
        if span.causal:
            out[:, at], lse[:, :, at] = part, total
            continue
        before, both = lse[:, :, at].clone(), torch.logaddexp(lse[:, :, at], total)
        out[:, at] *= (before - both).exp().transpose(1, 2)[..., None]
        out[:, at] += part * (total - both).exp().transpose(1, 2)[..., None]
        lse[:, :, at] = both
    return out.to(q.dtype), lse
