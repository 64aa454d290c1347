"""Who sees whom in a packed forward, in four ways that give the same numbers.

`node`: the blocks of the mask, call by call (see `spans`). No work is spent on tokens of other branches and no key is
copied. Any device, any precision; the way of a CPU.

`sdpa`: one call over the whole pack with the mask q sees k <=> k <= q < end[k]. Costs T x T whatever the tree.

`flex`: FlexAttention with the same mask as a function, which skips blocks that nobody sees. Compiled, on CUDA; on a CPU
it has no backward and runs only to be compared.

`varlen`: one call of PyTorch's variable-length flash attention: the queries of a node are a sequence whose keys are its
path, causal from the bottom right. On CUDA in half precision; keys are gathered along paths.

`auto` takes `node` on a CPU and, on CUDA, `varlen` in half precision where the build has it, else `flex`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from treadle.core.errors import ConfigError
from treadle.learner.kernels import HALF, kernel_for
from treadle.learner.pack import PackedBatch
from treadle.learner.spans import Calls, Shelf, spans
from treadle.learner.tree import require_order
from treadle.models.attention import AttentionPlan

VARLEN = "torch.nn.attention.varlen"


class NodePlan:
    """The blocks of the mask, one call each. Raises ValueError when nodes and ends are not one pre-order."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        self._calls = Calls(ordered_spans(batch, 0, batch.tokens), kernel_for(device))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        return self._calls.attend(layer, q, k, v, scale)


class RunPlan:
    """The blocks of a run of tokens, with the keys and values of other runs on a shelf. See `chunks`."""

    def __init__(self, batch: PackedBatch, device: torch.device, run: slice, shelf: Shelf) -> None:
        found = ordered_spans(batch, run.start, run.stop)
        self._calls = Calls(found, kernel_for(device), shelf, run)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, n, Hq, D]"""
        return self._calls.attend(layer, q, k, v, scale)


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


class FlexPlan:
    """FlexAttention with the mask as a function."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        end, tokens = batch.end.to(device), batch.tokens

        def sees(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & (q < end[k])

        self._blocks = create_block_mask(sees, None, None, tokens, tokens, device=str(device))
        self._call = _flex(device.type)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        grouped = q.shape[1] != k.shape[1]
        out: Tensor = self._call(q, k, v, block_mask=self._blocks, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)


@functools.cache
def _flex(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    plain: Callable[..., Any] = flex_attention
    return torch.compile(plain, dynamic=True) if device == "cuda" else plain


class VarlenPlan:
    """One variable-length flash attention: a sequence per node."""

    def __init__(self, batch: PackedBatch, device: torch.device) -> None:
        require_order(batch.nodes, batch.end.tolist(), batch.tokens)
        seen = paths(batch)
        lengths = torch.tensor([node.length for node in batch.nodes])
        self._keys = torch.cat(seen).to(device)
        """[S] tokens of all paths, one behind the other."""
        self._most = int(lengths.max()), max(len(path) for path in seen)
        self._cuts = _cuts(lengths).to(device), _cuts(torch.tensor([len(path) for path in seen])).to(device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # [T, H, D]
        out = varlen_attn(
            q.contiguous(), k[self._keys], v[self._keys], *self._cuts, *self._most, scale=scale, window_size=(-1, 0),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        assert isinstance(out, Tensor)
        return out[None]


def paths(batch: PackedBatch) -> list[Tensor]:
    """Per node the tokens that its last token sees, from the root on: long[seen]."""
    found: list[Tensor] = []
    for node in batch.nodes:
        own = torch.arange(node.start, node.start + node.length)
        found.append(own if node.parent < 0 else torch.cat([found[node.parent], own]))
    return found


def _cuts(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)


def ordered_spans(batch: PackedBatch, first: int, last: int) -> list[Any]:
    """The blocks of some queries of a pack, whose order is checked: it is all that spans know of who sees whom."""
    require_order(batch.nodes, batch.end.tolist(), batch.tokens)
    return list(spans(batch.nodes, first, last))


class _Kind(Protocol):
    def __call__(self, batch: PackedBatch, device: torch.device, /) -> AttentionPlan: ...


PLANS: Mapping[str, _Kind] = {"node": NodePlan, "sdpa": DensePlan, "flex": FlexPlan, "varlen": VarlenPlan}
"""Attention plans by the name in `LearnerConfig.attention`, which has `auto` besides."""


def missing(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why a plan cannot train on a device in a number format; empty when it can."""
    if name in ("node", "sdpa"):
        return ""
    if device.type != "cuda":
        return f"needs a CUDA device, the policy is on {device.type}"
    if name == "varlen" and dtype not in HALF:
        return f"needs float16 or bfloat16, the policy is in {str(dtype).removeprefix('torch.')}"
    if name == "varlen" and importlib.util.find_spec(VARLEN) is None:
        return f"needs {VARLEN}, which this build of torch does not have"
    return ""


def chosen(name: str, device: torch.device, dtype: torch.dtype) -> _Kind:
    """The plan of that name, or of `auto`. Raises ConfigError when it cannot train here."""
    if name == "auto":
        order = ("varlen", "flex") if device.type == "cuda" else ("node",)
        name = next(each for each in order if not missing(each, device, dtype))
    reason = missing(name, device, dtype)
    if reason:
        raise ConfigError(f"learner.attention: got {name!r}, which {reason}; use 'auto', 'node' or 'sdpa'")
    return PLANS[name]
