"""Recomputing: layers that keep their inputs alone, and compute what a backward needs of them again.

A forward that records gradients normally keeps about a dozen states of every layer until the backward has used them. A
layer that recomputes keeps one, its input, and runs a second time when the backward comes to it: memory for the time
of one more forward of the layers that train. The same operations run on the same numbers, so gradients do not change,
also in deterministic mode; nothing in a policy is random. Where no gradient is recorded nothing changes.

The layer's own hooks run once: what is run again is its forward, not its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(layers: Iterable[nn.Module]) -> Callable[[], None]:
    """Have these layers recompute; returns what ends it."""
    chosen = [(layer, layer.forward) for layer in layers]
    for layer, forward in chosen:
        layer.forward = _Twice(forward)

    def end() -> None:
        for layer, forward in chosen:
            layer.forward = forward

    return end


class _Twice:
    """The forward of one layer."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
