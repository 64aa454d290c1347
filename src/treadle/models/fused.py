"""A decoder layer with few passes over memory and few operations.

transformers writes a layer as some forty small operations. Each reads and writes all states, most keep their result
for the backward, and autograd adds up what meets. On a processor whose products run near their limit this was a tenth
of an update. Here a layer is three operations around the attention, each with a backward of its own:

    enter   norm, products to queries, keys and values, rotary positions
    leave   product of what attention gave, added to what entered
    feed    norm, gate and up, silu(gate) * up, down, added to what entered

Kept for the backward are what enters each of them, a number per token and norm, and gate and up; what is cheap is
computed again. Between products states are in the layer's own format, also where products are in half precision. The
gradients of weights are added to `weight.grad` inside the product, so that no matrix is written
only to be added; `torch.autograd.grad` does not see them.

The layer stays the object it was. What is not exactly the layer known here takes the way of transformers: another type,
adapters, biases, half precision, a part of it with hooks, another device than the CPU. Both ways differ by rounding.

A forward that records no gradients, the engine's, keeps nothing, and its products of the same states are one product
each: queries, keys and values, gate and up. At a few rows a layer's time is that of reading its weights and of starting
its operations, of which transformers' has more than twice as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRMSNorm

from treadle.models.linear import Product, Weights
from treadle.models.lora import adapted

LAYERS: tuple[type, ...] = (LlamaDecoderLayer, MistralDecoderLayer)
"""Layers that are known: RMS norm before attention and before a gated block, rotary positions, no more."""
NORMS: Mapping[type, tuple[str, tuple[torch.dtype, ...]]] = {
    LlamaRMSNorm: ("variance_epsilon", (torch.float32,)),
    MistralRMSNorm: ("variance_epsilon", (torch.float32,)),
    nn.RMSNorm: ("eps", (torch.float32, torch.float64)),
}
"""Norms -> the attribute of their epsilon, and the formats in which they compute as here."""

SILU = (nn.SiLU, type(ACT2FN["silu"]))


def fuse(module: nn.Module, weights: Weights) -> None:
    """Let the layers of `module` that are known take this way, with the products of its `weights`."""
    for layer in module.modules():
        if type(layer) in LAYERS and all(linear in weights.products for linear in _linear(layer)):
            layer.forward = _Layer(layer, layer.forward, weights)


def _linear(layer: Any) -> list[nn.Linear]:
    """The linear layers of a known layer, in the order of `_Parts`."""
    attention, block = layer.self_attn, layer.mlp
    return [
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, block.gate_proj, block.up_proj,
        block.down_proj,
    ]


@dataclass(frozen=True, slots=True)
class _Norm:
    scale: Tensor
    """[hidden]"""
    eps: float

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Normed states, and the factor of each token, [T, 1]."""
        size = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        factor = size.square_().div_(states.shape[-1]).add_(self.eps).rsqrt_()
        return (states * factor).mul_(self.scale), factor

    def back(self, slope: Tensor, unit: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the states, but for `factor` that is still to be multiplied, and of the scale.

        `slope`, that of the normed states, is used up; `unit` are the states times their factor.
        """
        weighted = slope * unit
        share = (weighted @ self.scale).div_(unit.shape[-1])
        slope.mul_(self.scale).addcmul_(unit, share[:, None], value=-1)
        return slope, weighted.sum(0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The tensors of a layer."""

    before: _Norm
    q: Product
    k: Product
    v: Product
    o: Product
    between: _Norm
    gate: Product
    up: Product
    down: Product
    head_dim: int


class _Layer:
    """The forward of one layer."""

    def __init__(self, layer: Any, forward: Callable[..., Any], weights: Weights) -> None:
        self._layer = layer
        self._plain = forward
        self._inside = [part for part in layer.modules() if part is not layer]
        self._linear = _linear(layer)
        self._products = [weights.products[each] for each in self._linear]
        self._qkv, self._gate_up = weights.joined(self._products[:3]), weights.joined(self._products[4:6])

    def __call__(self, hidden_states: Tensor, **given: Any) -> Tensor:
        plan, turn = given.get("plan"), given.get("position_embeddings")
        told = plan is not None and turn is not None and given.get("cache") is None
        parts = self._parts(hidden_states) if told else None
        if parts is None or plan is None or turn is None:
            plain: Tensor = self._plain(hidden_states, **given)
            return plain
        states, cos, sin = hidden_states[0], turn[0][0], turn[1][0]
        attention = self._layer.self_attn
        if not torch.is_grad_enabled():
            return self._unrecorded(states, parts, plan, cos, sin)[None]
        qkv = _Enter.apply(states, parts.before.scale, parts, cos, sin)  # type: ignore[no-untyped-call]
        q, k, v = (x.transpose(0, 1)[None] for x in qkv)
        seen = plan.attend(attention.layer_idx, q, k, v, attention.scaling)[0].reshape(len(states), -1)
        states = _Leave.apply(seen, states, parts)  # type: ignore[no-untyped-call]
        out: Tensor = _Feed.apply(states, parts.between.scale, parts)  # type: ignore[no-untyped-call]
        return out[None]

    def _unrecorded(self, states: Tensor, parts: _Parts, plan: Any, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden], nothing kept."""
        attention, count, dim = self._layer.self_attn, len(states), parts.head_dim
        heads = self._qkv.whole(parts.before(states)[0]).view(count, -1, dim)
        queries, keys = len(parts.q.weight) // dim, len(parts.k.weight) // dim
        turned, values = _turned(heads[:, : queries + keys], cos, sin), heads[:, queries + keys :]
        q, k, v = (x.transpose(0, 1)[None] for x in (turned[:, :queries], turned[:, queries:], values))
        seen = plan.attend(attention.layer_idx, q, k, v, attention.scaling)[0].reshape(count, -1)
        states = parts.o.whole(seen).add_(states)
        gate, up = self._gate_up.whole(parts.between(states)[0]).chunk(2, -1)
        return parts.down.whole(silu(gate).mul_(up)).add_(states)

    def _parts(self, states: Tensor) -> _Parts | None:
        """None where the layer is more than what is known here."""
        layer = self._layer
        if states.device.type != "cpu" or len(states) != 1 or any(map(_heard, self._inside)):
            return None
        before, between = _norm(layer.input_layernorm, states), _norm(layer.post_attention_layernorm, states)
        if before is None or between is None or type(layer.mlp.act_fn) not in SILU:
            return None
        weights = [product.weight for product in self._products]
        tensors = [before.scale, between.scale, *weights]
        alike = all(t.dtype == states.dtype and t.requires_grad == weights[0].requires_grad for t in tensors)
        plain = all(linear.bias is None and not adapted(linear) for linear in self._linear)
        if not (alike and plain):
            return None
        q, k, v, o, gate, up, down = self._products
        return _Parts(before, q, k, v, o, between, gate, up, down, layer.self_attn.head_dim)


def _heard(part: nn.Module) -> bool:
    """Whether somebody listens to a part of a layer."""
    listens = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
    return bool(listens)


def _norm(norm: Any, states: Tensor) -> _Norm | None:
    eps, dtypes = NORMS.get(type(norm), ("", ()))
    return _Norm(norm.weight, float(vars(norm)[eps])) if states.dtype in dtypes and vars(norm)[eps] else None


class _Enter(torch.autograd.Function):
    """Norm, products and rotary positions."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, scale: Tensor, parts: _Parts, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """states [T, hidden], cos and sin [T, D]; queries, keys and values [T, heads, D]."""
        normed, factor = parts.before(states)
        ctx.save_for_backward(states, factor, cos, sin)
        ctx.parts = parts
        normed = parts.q.narrow(normed)
        q, k, v = (
            product.times(normed).to(states.dtype).view(len(states), -1, parts.head_dim)
            for product in (parts.q, parts.k, parts.v)
        )
        return _turned(q, cos, sin), _turned(k, cos, sin), v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> tuple[Tensor | None, ...]:
        """Of the states and the norm; those of weights are added where they lie."""
        states, factor, cos, sin = ctx.saved_tensors
        parts: _Parts = ctx.parts
        turned = (_back(of_q, cos, sin), _back(of_k, cos, sin), of_v)
        slopes = [parts.q.narrow(x.reshape(len(states), -1)) for x in turned]
        unit = states * factor
        normed = parts.q.narrow(unit * parts.before.scale)
        for product, slope in zip((parts.q, parts.k, parts.v), slopes, strict=True):
            product.grow(slope, normed)
        of_normed = parts.q.back(slopes[0]).to(states.dtype)
        of_normed.add_(parts.k.back(slopes[1])).add_(parts.v.back(slopes[2]))
        of_states, of_scale = parts.before.back(of_normed, unit, factor)
        return of_states.mul_(factor), of_scale, None, None, None


class _Leave(torch.autograd.Function):
    """The product of what attention gave, added to what entered the layer."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, states: Tensor, parts: _Parts) -> Tensor:
        """seen [T, heads * D], states [T, hidden]; [T, hidden]."""
        ctx.save_for_backward(seen)  # attention keeps the same tensor
        ctx.parts = parts
        return parts.o.times(seen).to(states.dtype).add_(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Of what attention gave and of what entered."""
        (seen,) = ctx.saved_tensors
        product: Product = ctx.parts.o
        narrowed = product.narrow(slope)
        product.grow(narrowed, seen)
        return product.back(narrowed).to(slope.dtype), slope, None


class _Feed(torch.autograd.Function):
    """The gated block."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, scale: Tensor, parts: _Parts) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        normed, factor = parts.between(states)
        normed = parts.gate.narrow(normed)
        gate, up = parts.gate.times(normed), parts.up.times(normed)
        ctx.save_for_backward(states, factor, gate, up)
        ctx.parts = parts
        inner = silu(gate.to(states.dtype)).mul_(up)
        return parts.down.times(inner).to(states.dtype).add_(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Of the states and the norm."""
        states, factor, gate, up = ctx.saved_tensors
        parts: _Parts = ctx.parts
        gate = gate.to(states.dtype)
        open_, narrowed = silu(gate), parts.down.narrow(slope)
        parts.down.grow(narrowed, open_ * up)
        of_inner = parts.down.back(narrowed).to(states.dtype)
        of_up = parts.up.narrow(open_.mul_(of_inner))
        of_inner.mul_(up)
        of_gate = parts.gate.narrow(torch.ops.aten.silu_backward.grad_input(of_inner, gate, grad_input=of_inner))
        unit = states * factor
        normed = parts.gate.narrow(unit * parts.between.scale)
        parts.gate.grow(of_gate, normed)
        parts.up.grow(of_up, normed)
        of_normed = parts.gate.back(of_gate).to(states.dtype).add_(parts.up.back(of_up))
        of_states, of_scale = parts.between.back(of_normed, unit, factor)
        return torch.addcmul(slope, of_states, factor), of_scale, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: x * cos + (-second half, first half) * sin. x [T, heads, D]; the result is contiguous."""
    out = torch.mul(x, cos[:, None], out=x.new_empty(x.shape))
    half = x.shape[-1] // 2
    out[..., :half].addcmul_(x[..., half:], sin[:, None, :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[:, None, half:])
    return out


def _back(slope: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The transpose of `_turned`."""
    out = torch.mul(slope, cos[:, None], out=slope.new_empty(slope.shape))
    half = slope.shape[-1] // 2
    out[..., :half].addcmul_(slope[..., half:], sin[:, None, half:])
    out[..., half:].addcmul_(slope[..., :half], sin[:, None, :half], value=-1)
    return out
