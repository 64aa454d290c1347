"""Who sees whom in a packed forward, in two ways that give the same numbers.

`NodePlan`: the queries of one node against the keys and values of its context path, causal from the bottom right. No
work is spent on tokens of other branches. Tokens are split by nodes once and joined along each path, so that a backward
adds up gradients of a node's size: a slice of all tokens would have one of zeros of all tokens.

`DensePlan`: one call over the whole pack with the mask q sees k <=> k <= q < end[k]. Costs T x T whatever the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from treadle.learner.pack import PackedBatch
from treadle.models.attention import AttentionPlan


class DensePlan:
    """One masked attention over all tokens."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        end = batch.end.to(device)
        at = torch.arange(len(end), device=device)
        self._mask = (at[None, :] <= at[:, None]) & (at[:, None] < end[None, :])  # [Tq, Tk]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        grouped = q.shape[1] != k.shape[1]
        out = scaled_dot_product_attention(q, k, v, attn_mask=self._mask, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class _Call:
    """One attention call: the queries of a node and the nodes whose keys they see."""

    length: int
    path: tuple[int, ...]
    """Nodes from the root to this one."""
    seen: int
    """Keys in all."""


class NodePlan:
    """One attention call per node."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        self._masks: dict[tuple[int, int, torch.dtype], Tensor] = {}
        """By shape and dtype: made once and shared by all layers."""
        self._device = device
        self._calls: list[_Call] = []
        for number, node in enumerate(batch.nodes):  # they lie one behind the other
            above = self._calls[node.parent] if node.parent >= 0 else _Call(0, (), 0)
            self._calls.append(_Call(node.length, (*above.path, number), above.seen + node.length))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        grouped = q.shape[1] != k.shape[1]
        lengths = [call.length for call in self._calls]
        queries, keys, values = (torch.split(x, lengths, dim=2) for x in (q, k, v))
        parts = [
            scaled_dot_product_attention(
                own, _along(keys, call.path), _along(values, call.path), attn_mask=self._mask(call, q.dtype),
                is_causal=len(call.path) == 1, scale=scale, enable_gqa=grouped,
            )
            for own, call in zip(queries, self._calls, strict=True)
        ]
        return torch.cat(parts, dim=2).transpose(1, 2)

    def _mask(self, call: _Call, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores: the kernels would make it out of a bool mask again in every layer."""
        if len(call.path) == 1:
            return None
        key = (call.length, call.seen, dtype)
        if key not in self._masks:
            hidden = torch.full(key[:2], -torch.inf, dtype=dtype, device=self._device)
            self._masks[key] = hidden.triu(call.seen - call.length + 1)
        return self._masks[key]


def _along(parts: Sequence[Tensor], path: tuple[int, ...]) -> Tensor:
    return parts[path[0]] if len(path) == 1 else torch.cat([parts[node] for node in path], dim=2)


PLANS: Mapping[str, Callable[[PackedBatch, torch.device], AttentionPlan]] = {"node": NodePlan, "sdpa": DensePlan}
"""Attention plans by the name in `LearnerConfig.attention`."""
