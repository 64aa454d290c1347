"""The footprint of a learner: how many bytes it holds, and how many more each token of a pack takes.

    fixed       gradients and two moments of what trains, and the memo
    a pack      tokens * per_token + per_pack; a path that is longer takes tokens * per_path more (see `chunks`)
        per_token   what autograd keeps, counted on the model itself by a forward of a few tokens;
                    what a backward holds for a moment: `STATES` of the widest and of the plain states, and with
                    `recompute` all that autograd keeps of one layer
        per_pack    the gradient of one matrix before it is added up, and head_rows * vocab logits
    a checkpoint    a copy of what is written: the weights, twice where adapters are merged, or the moments if more

Attention with a dense mask (`learner.attention=sdpa`) takes tokens * tokens more, which is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.core import compute
from treadle.learner.config import LearnerConfig
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy

PROBE = (8, 24)
"""Tokens of two forwards whose difference says what one token takes."""
STATES = 4
"""Of the widest states of a layer, and of the states between layers: alive at once in a backward."""
HEAD_COPIES = 4
"""Of the logits of a run of edges, where the head is more than a plain product."""
EXACT_BYTES = 4
"""Of a number that log-probs are computed in."""
NAME_BYTES = 256
"""Of a memo's entry, beside its states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of a learner, its policy's weights aside."""

    gradients: int
    moments: int
    memo: int
    checkpoint: int
    """While a checkpoint is written, when no pack is trained."""
    per_token: int
    per_pack: int
    per_path: int
    """For each token of a path that is longer than a pack: keys, values and their gradients."""

    @property
    def fixed(self) -> int:
        """Whatever is trained."""
        return self.gradients + self.moments + self.memo

    def pack(self, tokens: int) -> int:
        """While a pack of so many tokens is trained."""
        return self.per_pack + tokens * self.per_token

    def shelf(self, tokens: int, at_once: int) -> int:
        """What a path of so many tokens takes besides a pack, when only `at_once` of them are computed at a time."""
        return tokens * self.per_path if tokens > at_once else 0

    def tokens(self, size: int) -> int:
        """Tokens of the largest pack that fits into so many bytes; may be negative."""
        return (size - self.per_pack) // self.per_token


def footprint(policy: Policy, config: LearnerConfig) -> Footprint:
    """Of a learner with this config. Runs two small forwards; what of the policy trains is as the config says then."""
    trained = policy.train(config.top_layers, lora_rank=config.lora_rank)
    gradients = sum(map(_size, trained))
    each, dims = policy.weight_dtype.itemsize, policy.dims
    layers = dims.layers if config.top_layers is None else config.top_layers
    keeps = config.memo_tokens if layers < dims.layers else 0
    plain = policy.head_weight is not None and each >= EXACT_BYTES
    logits = (1 if plain else HEAD_COPIES) * max(each, EXACT_BYTES)
    states = STATES * (policy.widest + dims.hidden) * each
    kept = compute.run(lambda: kept_per_token(policy))
    if config.recompute:
        policy.train(config.top_layers, recomputes=True, lora_rank=config.lora_rank)
        kept = compute.run(lambda: kept_per_token(policy)) + kept // layers
    return Footprint(
        gradients=gradients, moments=2 * gradients, memo=keeps * (dims.hidden * each + NAME_BYTES),
        checkpoint=max((1 if policy.adapters is None else 2) * policy.weight_bytes, 2 * gradients),
        per_token=kept + states,
        per_path=2 * dims.kv_bytes(each), per_pack=max(map(_size, trained)) + logits * config.head_rows * dims.vocab,
    )


def kept_per_token(policy: Policy) -> int:
    """Bytes that autograd keeps of a token from forward to backward. In the compute thread."""
    few, more = (_kept(policy, tokens) for tokens in PROBE)
    return (more - few) // (PROBE[1] - PROBE[0])


def _kept(policy: Policy, tokens: int) -> int:
    """Bytes of everything but parameters that a forward of so many tokens keeps for its backward."""
    parameters = {p.untyped_storage().data_ptr() for p in policy.module.parameters()}
    held: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    device = next(policy.module.parameters()).device
    at = torch.arange(tokens, device=device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.hidden(at % policy.dims.vocab, at, CausalPlan())
    return sum(t.untyped_storage().nbytes() for place, t in held.items() if place not in parameters)


def _size(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()
