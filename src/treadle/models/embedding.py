"""Embeddings whose backward writes the rows that were read, where gradients are recorded on the CPU.

PyTorch's own writes a gradient for the whole vocabulary, mostly zeros, and then adds it to what is there: three times
the table's size through memory for every pack. Here the rows are added where they lie, in the order of the tokens, so
that the same tokens give the same bits. `torch.autograd.grad` does not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding


def add_in_place(module: nn.Module) -> None:
    """Let the plain embeddings of `module` do so."""
    for layer in module.modules():
        if type(layer) is nn.Embedding and layer.max_norm is None and not (layer.sparse or layer.scale_grad_by_freq):
            layer.forward = _Embedding(layer, layer.forward)  # type: ignore[assignment, method-assign]


class _Embedding:
    """The forward of one embedding."""

    def __init__(self, layer: nn.Embedding, forward: Callable[..., Any]) -> None:
        self._layer = layer
        self._plain = forward

    def __call__(self, ids: Tensor) -> Tensor:
        weight = self._layer.weight
        if not (torch.is_grad_enabled() and weight.requires_grad and weight.device.type == "cpu"):
            plain: Tensor = self._plain(ids)
            return plain
        found: Tensor = _Looked.apply(weight, ids, self._layer.padding_idx)  # type: ignore[no-untyped-call]
        return found


class _Looked(torch.autograd.Function):
    """Rows of a table."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        """[..., width]"""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, ...]:
        """Added to the rows that were read; the padding's never learns."""
        (ids,) = ctx.saved_tensors
        weight, rows, ids = ctx.weight, slope.reshape(-1, slope.shape[-1]), ids.reshape(-1)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, None], 0.0)
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids, rows)
        return None, None, None
