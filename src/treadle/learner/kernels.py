"""Dense attention with what a tree needs besides the output: log-sum-exps, and a backward that is given them.

On a CPU the kernel is PyTorch's own flash attention, called where its operators are; elsewhere, or in a build without
them, the same formulas (2205.14135) in plain operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
LEAF = 128
"""Queries of the smallest block that a larger one is divided into."""


class Kernel(Protocol):
    """One dense attention. q [1, Hq, n, D]; k, v [1, Hk, m, D] with Hq a multiple of Hk."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """Output [1, Hq, n, D] and log-sum-exp of the scores [1, Hq, n]."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, from output, its gradient and log-sum-exp over all keys that the queries see."""
        ...


class Plain:
    """The formulas, in any build and on any device. Holds n x m scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """See `Kernel`."""
        scores = self._scores(q, k, causal, scale)  # [Hk, G, n, m]
        lse = scores.logsumexp(-1)
        out = (scores - lse[..., None]).exp() @ _wide(v)[0][:, None]
        return out.reshape(q.shape).to(q.dtype), lse.reshape(q.shape[:3])

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel`."""
        scores = self._scores(q, k, causal, scale)
        heads, group, n, _ = scores.shape
        weight = (scores - lse.reshape(heads, group, n, 1)).exp()
        into = _wide(grad).reshape(heads, group, n, -1)
        delta = (_wide(grad) * _wide(out)).sum(-1).reshape(heads, group, n, 1)
        slope = weight * (into @ _wide(v)[0][:, None].mT - delta) * scale
        of_q = (slope @ _wide(k)[0][:, None]).reshape(q.shape)
        of_k = (slope.mT @ _wide(q).reshape(heads, group, n, -1)).sum(1)[None]
        of_v = (weight.mT @ into).sum(1)[None]
        return of_q.to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype)

    def _scores(self, q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
        heads = k.shape[1]
        scores = _wide(q).reshape(heads, -1, *q.shape[2:]) @ _wide(k)[0][:, None].mT * scale
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores


class Flash:
    """PyTorch's kernel for CPUs, which takes grouped heads and slices as they are.

    Its backward shares work out by key heads, which few cores divide badly (three heads on two cores take as long as
    four), and computes most of what a causal mask hides. So a large block goes into it as a batch of smaller ones, made
    by views: queries in two halves, and a causal block as causal halves and the square between them, down to `LEAF`.
    """

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        self._forward = forward
        self._backward = backward

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """See `Kernel`."""
        out, lse = self._forward(q, k, v, 0.0, causal, scale=scale)
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel`."""
        block = _Block((grad, q, out, lse[..., None]), (k, v), torch.zeros_like(q), torch.zeros_like(k),
                       torch.zeros_like(v))
        n = q.shape[2]
        step = 1
        while n // step >= 2 * LEAF:
            step *= 2
        whole = n - n % step
        if not causal:
            self._full(block.part(slice(0, whole)), scale)
            if whole < n:
                self._add(block.part(slice(whole, n)), False, scale)
            return block.of_q, block.of_k, block.of_v
        self._causal(block.part(slice(0, whole), slice(0, whole)), scale)
        if whole < n:
            self._add(block.part(slice(whole, n), slice(0, whole)), False, scale)
            self._add(block.part(slice(whole, n), slice(whole, n)), True, scale)
        return block.of_q, block.of_k, block.of_v

    def _causal(self, block: _Block, scale: float) -> None:
        """A batch of causal blocks whose length is a leaf's times a power of two."""
        if block.length < 2 * LEAF:
            self._add(block, True, scale)
            return
        halves = block.halved(keys=True)
        self._full(halves.later_on_earlier(), scale)
        self._causal(halves, scale)

    def _full(self, block: _Block, scale: float) -> None:
        if block.length < 2 * LEAF or block.batch > 1:
            self._add(block, False, scale)
            return
        self._add(block.halved(keys=False), False, scale)

    def _add(self, block: _Block, causal: bool, scale: float) -> None:
        (grad, q, out, lse), (k, v) = block.queries, block.keys
        wide = (block.batch, -1, -1, -1)
        shares = self._backward(
            grad, q, k.expand(wide), v.expand(wide), out, lse[..., 0], 0.0, causal, scale=scale
        )
        block.of_q.add_(shares[0])
        for held, share in ((block.of_k, shares[1]), (block.of_v, shares[2])):
            held.add_(share if len(held) == len(share) else share.sum(0, keepdim=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """What a backward is made of, as views of [batch, heads, tokens, columns]."""

    queries: tuple[Tensor, ...]
    """Gradient of the output, queries, output, log-sum-exp."""
    keys: tuple[Tensor, ...]
    """Keys and values; of a batch of one where all queries see the same."""
    of_q: Tensor
    of_k: Tensor
    of_v: Tensor
    """Where gradients are added up."""

    @property
    def batch(self) -> int:
        return len(self.of_q)

    @property
    def length(self) -> int:
        """Queries of each."""
        return self.of_q.shape[2]

    def part(self, queries: slice, keys: slice | None = None) -> _Block:
        """Some queries, some keys."""
        return self._seen(lambda x: x[:, :, queries], lambda x: x if keys is None else x[:, :, keys])

    def halved(self, *, keys: bool) -> _Block:
        """Queries in two, and with `keys` these, too: first and second halves in turns."""
        return self._seen(_halves, _halves if keys else lambda x: x)

    def later_on_earlier(self) -> _Block:
        """Of halves, the second ones' queries with the first ones' keys."""
        return self._seen(lambda x: x[1::2], lambda x: x[::2])

    def _seen(self, queries: Callable[[Tensor], Tensor], keys: Callable[[Tensor], Tensor]) -> _Block:
        return _Block(
            tuple(map(queries, self.queries)), tuple(map(keys, self.keys)), queries(self.of_q), keys(self.of_k),
            keys(self.of_v),
        )


def _halves(x: Tensor) -> Tensor:
    """[b, H, n, D] as [2 b, H, n / 2, D], a view."""
    batch, heads, n, columns = x.shape
    return x.view(batch, heads, 2, n // 2, columns).movedim(2, 1).view(2 * batch, heads, n // 2, columns)


def _find() -> Flash | None:
    """None in builds without it."""
    try:
        return Flash(
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        )
    except AttributeError:
        return None


PLAIN = Plain()
FLASH = _find()


def kernel_for(device: torch.device) -> Kernel:
    """The fastest kernel of this module on a device."""
    return FLASH if FLASH is not None and device.type == "cpu" else PLAIN


def _wide(states: Tensor) -> Tensor:
    """In a format to add up in."""
    return states.float() if states.dtype in HALF else states
