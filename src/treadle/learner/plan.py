"""Who sees whom in a packed forward, in two ways that give the same numbers.

`NodePlan`: the queries of one node against the keys and values gathered along its context path, causal from the bottom
right. No work is spent on tokens of other branches, and a path that is contiguous in the pack (a root, or the first
child of one that is) is a view, not a copy.

`DensePlan`: one call over the whole pack with the mask q sees k <=> k <= q < end[k]. Costs T x T whatever the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """One attention call: a run of queries and the runs of keys that it sees."""

    start: int
    length: int
    keys: tuple[tuple[int, int], ...]
    """(start, end) of each run, in context order; the last one ends with the queries."""
    seen: int | None
    """Keys in all; None when queries and keys are the same run."""


class NodePlan:
    """One attention call per node."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        paths: list[list[tuple[int, int]]] = []
        self._masks: dict[tuple[int, int, torch.dtype], Tensor] = {}
        """By shape and dtype: made once and shared by all layers."""
        self._device = device
        self._calls: list[_Call] = []
        for node in batch.nodes:
            before = paths[node.parent] if node.parent >= 0 else []
            path = _join(before, (node.start, node.start + node.length))
            paths.append(path)
            count = sum(stop - start for start, stop in path)
            self._calls.append(_Call(node.start, node.length, tuple(path), None if count == node.length else count))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        grouped = q.shape[1] != k.shape[1]
        parts = [
            scaled_dot_product_attention(
                q[:, :, call.start : call.start + call.length], _along(k, call.keys), _along(v, call.keys),
                attn_mask=self._mask(call, q.dtype), is_causal=call.seen is None, scale=scale, enable_gqa=grouped,
            )
            for call in self._calls
        ]
        return torch.cat(parts, dim=2).transpose(1, 2)

    def _mask(self, call: _Call, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores: the kernels would make it out of a bool mask again in every layer."""
        if call.seen is None:
            return None
        key = (call.length, call.seen, dtype)
        if key not in self._masks:
            hidden = torch.full(key[:2], -torch.inf, dtype=dtype, device=self._device)
            self._masks[key] = hidden.triu(call.seen - call.length + 1)
        return self._masks[key]


def _join(path: list[tuple[int, int]], run: tuple[int, int]) -> list[tuple[int, int]]:
    if path and path[-1][1] == run[0]:
        return [*path[:-1], (path[-1][0], run[1])]
    return [*path, run]


def _along(x: Tensor, runs: tuple[tuple[int, int], ...]) -> Tensor:
    if len(runs) == 1:
        return x[:, :, runs[0][0] : runs[0][1]]
    return torch.cat([x[:, :, start:stop] for start, stop in runs], dim=2)


PLANS: Mapping[str, Callable[[PackedBatch, torch.device], AttentionPlan]] = {"node": NodePlan, "sdpa": DensePlan}
"""Attention plans by the name in `LearnerConfig.attention`."""
