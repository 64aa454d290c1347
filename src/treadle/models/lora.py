"""Adapters: low-rank corrections beside linear layers that stay as they are (LoRA, arXiv:2106.09685).

    y = x W^T + b + alpha / rank * (x A^T) B^T        A [rank, in] random, B [out, rank] zeros at first

An adapted layer stays the object it was, under its name, with two more parameters, `lora_a` and `lora_b`. Its own
product goes on as before, the quickened one included (see `linear`), and what was packed for it stays good, because its
weight does not train. Engine and learner hold one module, so the engine samples from the adapted policy. Adapters of
weights in half precision are float32: they are what learns.

Two forms leave the process. *Merged*, W + alpha / rank * B A in the layer's own format, is what transformers loads and
what engines that copy are given; it differs from the adapted product by rounding. *Exact*, A, B and W of each adapted
layer, is what a learner goes on from. `fold` makes the merged form the layer's own and ends the adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from treadle.core.errors import ModelError
from treadle.core.seeds import Stream

PARTS = ("lora_a", "lora_b")


class Adapters:
    """The adapters of some linear layers of a module. Attached when made, until `fold`."""

    def __init__(self, layers: Mapping[str, nn.Linear], *, rank: int, alpha: float) -> None:
        """Adapt these layers, given by their names in the module.

        Raises ModelError when there are none, or one is smaller than the rank.
        """
        if not layers:
            raise ModelError(f"learner.lora_rank={rank}: the layers that train have no linear layers to adapt")
        name, least = min(layers.items(), key=lambda item: min(item[1].weight.shape))
        if rank > min(least.weight.shape):
            shape = " x ".join(map(str, least.weight.shape))
            raise ModelError(f"learner.lora_rank={rank}: expected at most that of {name}, which is {shape}")
        self._held = {name: _Adapted(name, layer, rank, alpha / rank) for name, layer in layers.items()}

    def parameters(self) -> list[nn.Parameter]:
        """What trains."""
        return [part for held in self._held.values() for part in (held.a, held.b)]

    def without(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's state without adapters."""
        own = {f"{name}.{part}" for name in self._held for part in PARTS}
        return {name: tensor for name, tensor in state.items() if name not in own}

    @torch.no_grad()
    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's state as transformers knows it: corrections added to weights, adapters left out."""
        return self.without(state) | {f"{name}.weight": held.merged() for name, held in self._held.items()}

    def exact(self) -> dict[str, Tensor]:
        """A, B and W of every adapted layer, the tensors themselves."""
        return {
            f"{name}.{part}": tensor.detach()
            for name, held in self._held.items()
            for part, tensor in (*zip(PARTS, (held.a, held.b), strict=True), ("weight", held.layer.weight))
        }

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within the block the layers compute as if they were not adapted. In the compute thread."""
        for held in self._held.values():
            held.layer.forward = held.forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            for held in self._held.values():
                held.layer.forward = held  # type: ignore[assignment, method-assign]

    @torch.no_grad()
    def reset(self) -> None:
        """Correct nothing: the layers' own weights are all there is."""
        for held in self._held.values():
            held.b.zero_()

    @torch.no_grad()
    def fold(self) -> None:
        """Add the corrections to the weights and end the adapters."""
        for held in self._held.values():
            held.layer.weight.copy_(held.merged())
            held.layer.forward = held.forward  # type: ignore[method-assign]
            for part in PARTS:
                delattr(held.layer, part)


class _Adapted:
    """The forward of one adapted layer."""

    def __init__(self, name: str, layer: nn.Linear, rank: int, scale: float) -> None:
        self.layer = layer
        self.forward = layer.forward
        """The layer's own product."""
        self._scale = scale
        weight = layer.weight
        dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
        first = (Stream(0).at("lora", name).numpy().random((rank, layer.in_features)) * 2 - 1) / layer.in_features**0.5
        self.a = nn.Parameter(torch.from_numpy(first).to(weight.device, dtype))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, dtype=dtype, device=weight.device))
        for part, parameter in zip(PARTS, (self.a, self.b), strict=True):
            layer.register_parameter(part, parameter)
        layer.forward = self  # type: ignore[assignment, method-assign]

    def __call__(self, states: Tensor) -> Tensor:
        low = nn.functional.linear(states.to(self.a.dtype), self.a)  # [..., rank]
        correction = nn.functional.linear(low, self.b * self._scale)
        return self.forward(states) + correction.to(states.dtype)

    def merged(self) -> Tensor:
        """W + scale * B A, in W's format."""
        weight = self.layer.weight
        return (weight.to(self.a.dtype) + self._scale * (self.b @ self.a)).to(weight.dtype)


def adapted(layer: nn.Module) -> bool:
    """Whether an adapter stands beside this layer."""
    return isinstance(layer.forward, _Adapted)


def linear_layers(module: nn.Module, parts: Iterable[nn.Module]) -> dict[str, nn.Linear]:
    """The plain linear layers within these parts of a module, by their names in it."""
    inside = {id(layer) for part in parts for layer in part.modules()}
    return {n: m for n, m in module.named_modules() if type(m) is nn.Linear and id(m) in inside}
