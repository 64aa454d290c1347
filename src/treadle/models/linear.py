"""Linear layers on the CPU, through the faster of the two libraries that PyTorch carries.

PyTorch sends float32 products to MKL. For the thin products of a decoding step, and for a large output head at any
size, oneDNN's inner product makes better use of the caches, most of all on a copy of the weights in its own order. On
an AMD EPYC with two threads and the shapes of a 135M model the packed product took, of the time of MKL's: a third at
4 rows, about half at 16, two thirds at 32 and three quarters at 64; in place it took about half, three quarters, eight
tenths and nine tenths. The copy costs the memory of the weights again, so that a module beyond `MOST_PACKED` bytes is
read in place. At the thousand rows of an update both of oneDNN's are about nine tenths of MKL's, and so is its product
of the states' gradient, on the transposed weight as it lies; for the weight's own gradient MKL is as good or better.

`quicken` makes every plain linear layer of a module take it; a layer that is not float32 on the CPU stays as it is.
Names and parameters of the module do not change. Where gradients are recorded the weight is read in place. Elsewhere a
copy is made when a layer is used for the first time after its weights changed. PyTorch counts changes of a tensor, but
a fused optimiser step goes uncounted: who takes one has to say so, `Weights.changed`. A step changes what trains alone:
copies of other weights, those below the layers that train and those beside an adapter (see `lora`), stay good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Product = Callable[[Tensor, Tensor, Tensor | None, str, list[float], str], Tensor]
Order = Callable[[Tensor, int], Tensor]
MOST_PACKED = 2 << 30
"""Bytes of the largest module whose weights are copied."""
ROWS = 64
"""Rows of a product that the order of a copy is chosen for; it is good from 1 to many hundreds."""


def _find() -> tuple[Product, Order] | None:
    """The operators of PyTorch that multiply by way of oneDNN and order weights for it; None in builds without them."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        return torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight
    except AttributeError:
        return None


FOUND = _find()


def multiply(states: Tensor, weight: Tensor) -> Tensor:
    """states [..., in] times the transpose of weight [out, in], read in place: [..., out].

    Not for where gradients are recorded.
    """
    if FOUND is None or not _fits(states, weight):
        return nn.functional.linear(states, weight)
    return FOUND[0](states, weight, None, "none", [], "")


def _fits(states: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes this product."""
    exact = states.dtype == weight.dtype == torch.float32
    return exact and states.device.type == weight.device.type == "cpu" and bool(states.numel())


@dataclass(slots=True)
class Weights:
    """What the quickened layers of one module know about their weights."""

    packed: bool
    """Whether they are copied."""
    size: int = 0
    """Bytes of all copies."""
    forwards: list[_Forward] = field(default_factory=list)

    def changed(self) -> None:
        """Say that what trains changed in a way that PyTorch does not count. Not while a forward runs."""
        for forward in self.forwards:
            forward.changed()


def quicken(module: nn.Module) -> Weights:
    """Let the plain linear layers of `module` use oneDNN."""
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    packed = FOUND is not None and size <= MOST_PACKED
    weights = Weights(packed=packed, size=size if packed else 0)
    if FOUND is not None:
        for layer in layers:
            forward = _Forward(layer, weights, *FOUND)
            weights.forwards.append(forward)
            layer.forward = forward  # type: ignore[assignment, method-assign]
    return weights


class _Forward:
    """The forward of one layer."""

    def __init__(self, layer: nn.Linear, weights: Weights, product: Product, order: Order) -> None:
        self._layer = layer
        self._weights = weights
        self._product = product
        self._order = order
        self._edition = 0
        """Uncounted changes of the weight."""
        self._held: tuple[tuple[int, int, int], Tensor] | None = None
        """The copy, and what it is a copy of."""

    def changed(self) -> None:
        """The weight changed uncounted, if it trains."""
        self._edition += int(self._layer.weight.requires_grad)

    def __call__(self, states: Tensor) -> Tensor:
        weight, bias = self._layer.weight, self._layer.bias
        if not _fits(states, weight):
            return nn.functional.linear(states, weight, bias)
        if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
            recorded: Tensor = _Recorded.apply(states, weight, bias, self._product)  # type: ignore[no-untyped-call]
            return recorded
        return self._product(states, self._packed(weight) if self._weights.packed else weight, bias, "none", [], "")

    def _packed(self, weight: Tensor) -> Tensor:
        """Weights in oneDNN's order. Two threads may both make it; either copy is right."""
        key = (weight.data_ptr(), weight._version, self._edition)
        held = self._held
        if held is None or held[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                held = self._held = (key, self._order(weight.detach(), ROWS))
        return held[1]


class _Recorded(torch.autograd.Function):
    """The product where gradients are recorded."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
        """[..., in] to [..., out]."""
        ctx.save_for_backward(states, weight)
        return product(states, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the states, the weight and the bias, each where it is asked for."""
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            multiply(grad, weight.T) if of_states else None,
            rows.T @ states.reshape(-1, states.shape[-1]) if of_weight else None,
            rows.sum(0) if of_bias else None,
            None,
        )
