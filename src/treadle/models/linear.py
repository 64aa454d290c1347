"""Products of linear layers: through the faster library on the CPU, and in half precision where that is asked for.

**The library.** PyTorch sends float32 products to MKL. For the thin products of a decoding step, and for a large output
head at any size, oneDNN's inner product makes better use of the caches, most of all on a copy of the weights in its own
order. On an AMD EPYC with two threads and the shapes of a 135M model the packed product took, of the time of MKL's: a
third at 4 rows, about half at 16, two thirds at 32 and three quarters at 64; in place it took about half, three
quarters, eight tenths and nine tenths. The copy costs the memory of the weights again, so that a module beyond
`MOST_PACKED` bytes is read in place. At the thousand rows of an update both of oneDNN's are about nine tenths of MKL's,
and so is its product of the states' gradient, on the transposed weight as it lies; for the weight's own gradient MKL is
as good or better.

**Mixed precision.** Weights, states, gradients and the optimiser's moments stay float32; the two factors of a product
are rounded to bfloat16, whose products a processor or an accelerator with units for them makes twice as fast or more.
Sums run in float32 inside a product and are rounded once, when it is done. So the smallest step of an optimiser still
counts, which it does not where the weights themselves are in half precision. What is rounded are copies.

`quicken` makes every plain linear layer of a module take a `Product`. Names and parameters of the module do not change.
A copy is made when it is used for the first time after its weight changed. PyTorch counts changes of a tensor, but a
fused optimiser step goes uncounted: who takes one has to say so, `Weights.changed`. A step changes what trains alone:
copies of other weights, those below the layers that train and those beside an adapter (see `lora`), stay good. Where
gradients are recorded a float32 weight is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Library = Callable[[Tensor, Tensor, Tensor | None, str, list[float], str], Tensor]
Order = Callable[[Tensor, int], Tensor]
MOST_PACKED = 2 << 30
"""Bytes of the largest module whose weights are copied into another order."""
ROWS = 64
"""Rows of a product that the order of a copy is chosen for; it is good from 1 to many hundreds."""


def _find() -> tuple[Library, Order] | None:
    """The operators of PyTorch that multiply by way of oneDNN and order weights for it; None in builds without them."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        return torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight
    except AttributeError:
        return None


FOUND = _find()
TAKEN = (torch.float32, torch.bfloat16)
"""Number formats whose products are oneDNN's."""


def multiply(states: Tensor, weight: Tensor) -> Tensor:
    """states [..., in] times the transpose of weight [out, in], as it lies: [..., out], all of one number format.

    Not for where gradients are recorded.
    """
    if FOUND is None or not _fits(states, weight):
        return nn.functional.linear(states, weight)
    return FOUND[0](states, weight, None, "none", [], "")


def _fits(states: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes this product."""
    alike = states.dtype == weight.dtype and weight.dtype in TAKEN
    return alike and states.device.type == weight.device.type == "cpu" and bool(states.numel())


class Product:
    """What one linear layer multiplies, forward and backward; the layer's forward."""

    def __init__(self, layer: nn.Linear, *, packs: bool) -> None:
        self._layer = layer
        self._packs = packs
        self.half: torch.dtype | None = None
        """The format that factors are rounded to; None multiplies them as they are."""
        self._edition = 0
        """Uncounted changes of the weight."""
        self._copies: dict[bool, tuple[tuple[object, ...], Tensor]] = {}
        """Copies of the weight, in oneDNN's order (True) or as it lies, and what each is a copy of."""

    @property
    def weight(self) -> Tensor:
        """[out, in], the one that trains."""
        return self._layer.weight

    @property
    def copied_bytes(self) -> int:
        """Of all copies, once they are made."""
        rounded = self._format is not None
        plain = rounded and (self.weight.requires_grad or not self.packed)
        return self.weight.numel() * (self._format or self.weight.dtype).itemsize * (int(self.packed) + int(plain))

    def changed(self) -> None:
        """The weight changed uncounted, if it trains."""
        self._edition += int(self.weight.requires_grad)

    def narrow(self, factor: Tensor) -> Tensor:
        """A factor in the format that products are made in."""
        return factor if self._format is None else factor.to(self._format)

    def times(self, states: Tensor) -> Tensor:
        """states [..., in] to [..., out], in the products' format, without bias. Records no gradients."""
        return multiply(self.narrow(states), self._plain())

    def back(self, slope: Tensor) -> Tensor:
        """The states' gradient, slope [..., out] to [..., in], in the products' format."""
        return multiply(self.narrow(slope), self._plain().T)

    def grow(self, slope: Tensor, states: Tensor) -> None:
        """Add the weight's gradient where it lies, if it trains: slope [T, out], states [T, in]."""
        weight = self.weight
        if not weight.requires_grad:
            return
        slope, states = self.narrow(slope), self.narrow(states)
        if weight.grad is None:
            weight.grad = (slope.T @ states).to(weight.dtype)
        elif self._format is None:
            weight.grad.addmm_(slope.T, states)
        else:
            weight.grad.add_(slope.T @ states)

    def __call__(self, states: Tensor) -> Tensor:
        """The layer's forward, in the format of the states."""
        weight, bias = self.weight, self._layer.bias
        exact = states.dtype == weight.dtype == torch.float32 and bool(states.numel())
        if not exact or (self.half is None and not _fits(states, weight)):
            return nn.functional.linear(states, weight, bias)
        if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
            recorded: Tensor = _Recorded.apply(states, weight, bias, self)  # type: ignore[no-untyped-call]
            return recorded
        return self.whole(states)

    def whole(self, states: Tensor, *, packed: bool = True) -> Tensor:
        """[..., in] to [..., out] in the format of the states, bias added. Records no gradients.

        `packed` lets it read a copy of the weight in oneDNN's order.
        """
        bias = self._layer.bias
        if self._format is None and (FOUND is None or not _fits(states, self.weight)):
            return nn.functional.linear(states, self.weight, bias)
        factor = self._copy(packed=True) if packed and self.packed else self._plain()
        if self._format is None and FOUND is not None:
            return FOUND[0](states, factor, bias, "none", [], "")
        out = multiply(self.narrow(states), factor).to(states.dtype)
        return out if bias is None else out.add_(bias)

    @property
    def _format(self) -> torch.dtype | None:
        """The narrower format of products; None where they have the weight's."""
        return self.half if self.weight.dtype == torch.float32 else None

    @property
    def key(self) -> tuple[object, ...]:
        """Changes with the weight, where it lies, and the products' format."""
        weight = self.weight
        return (weight.data_ptr(), weight._version, self._edition, self._format)

    def forget(self) -> None:
        """Keep no copy."""
        self._copies.clear()

    @property
    def packed(self) -> bool:
        """Whether forwards that record no gradients read a copy in oneDNN's order."""
        return self._packs and self.weight.dtype == torch.float32 and self.weight.device.type == "cpu"

    def _plain(self) -> Tensor:
        """The weight as it lies, in the products' format."""
        return self.weight if self._format is None else self._copy(packed=False)

    def _copy(self, *, packed: bool) -> Tensor:
        """A copy in the products' format. Two threads may both make it; either is right."""
        held, key = self._copies.get(packed), self.key
        if held is None or held[0] != key:
            held = self._copies[packed] = (key, _copied([self], packed=packed))
        return held[1]


class Joint:
    """Products of the same states, made as one where their weights are copied anyway: fewer, larger calls."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Of layers without bias that take the same states."""
        self._products = tuple(products)
        self._copy: tuple[tuple[object, ...], Tensor] | None = None

    def forget(self) -> None:
        """Keep no copy."""
        self._copy = None

    def whole(self, states: Tensor) -> Tensor:
        """states [..., in] to [..., all out], side by side, in the format of the states. Records no gradients."""
        if not all(product.packed for product in self._products):
            return torch.cat([product.whole(states) for product in self._products], -1)
        key = tuple(product.key for product in self._products)
        if self._copy is None or self._copy[0] != key:
            self._copy = (key, _copied(self._products, packed=True))
        return multiply(self._products[0].narrow(states), self._copy[1]).to(states.dtype)


def _copied(products: Sequence[Product], *, packed: bool) -> Tensor:
    """A copy of weights, one below the other, in the products' format."""
    with torch.inference_mode(False), torch.no_grad():
        weights = [product.narrow(product.weight.detach()) for product in products]
        made = weights[0] if len(weights) == 1 else torch.cat(weights)
        return FOUND[1](made, ROWS) if packed and FOUND is not None else made


@dataclass(frozen=True, slots=True)
class Weights:
    """The products of one module, by layer."""

    products: Mapping[nn.Linear, Product]
    joints: list[Joint] = field(default_factory=list)

    def joined(self, products: Sequence[Product]) -> Joint:
        """These products as one."""
        joint = Joint(products)
        self.joints.append(joint)
        return joint

    @property
    def copied_bytes(self) -> int:
        """Of all copies, once they are made; a joined one takes the place of its parts'."""
        return sum(product.copied_bytes for product in self.products.values())

    def changed(self) -> None:
        """Say that what trains changed in a way that PyTorch does not count. Not while a forward runs."""
        for product in self.products.values():
            product.changed()

    def forget(self) -> None:
        """Keep no copies: those that are used are made again. For when others will be used than before."""
        for product in self.products.values():
            product.forget()
        for joint in self.joints:
            joint.forget()

    def mix(self, half: torch.dtype, layers: Iterable[nn.Module]) -> None:
        """Round the factors of these layers' products, and of no others'."""
        chosen = set(layers)
        for layer, product in self.products.items():
            product.half = half if layer in chosen else None


def quicken(module: nn.Module) -> Weights:
    """Let the plain linear layers of `module` multiply by `Product`s."""
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    products = {layer: Product(layer, packs=FOUND is not None and size <= MOST_PACKED) for layer in layers}
    for layer, product in products.items():
        layer.forward = product  # type: ignore[assignment, method-assign]
    return Weights(products)


class _Recorded(torch.autograd.Function):
    """The product where gradients are recorded."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
        """[..., in] to [..., out]."""
        ctx.save_for_backward(product.narrow(states), weight)
        ctx.product = product
        return product.whole(states, packed=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the states, the weight and the bias, each where it is asked for."""
        states, weight = ctx.saved_tensors
        product: Product = ctx.product
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        slope = product.narrow(grad)
        rows = slope.reshape(-1, grad.shape[-1])
        return (
            product.back(slope).to(weight.dtype) if of_states else None,
            (rows.T @ states.reshape(-1, states.shape[-1])).to(weight.dtype) if of_weight else None,
            grad.reshape(-1, grad.shape[-1]).sum(0) if of_bias else None,
            None,
        )
