"""The attention hook: how one function of ours becomes the attention of any Hugging Face decoder.

transformers looks its attention function up by name. `treadle` is such a name: a model loaded with it computes
queries, keys and values as always (projections, rotary positions, norms) and then calls `_dispatch`, which hands them
to the `AttentionPlan` that came with this very forward. The plan decides who sees whom and where keys and values are
kept, so one function serves the learner (a tree of segments) and the engine (its own key-value store), and the model's
code stays untouched. No mask is built: the mask function registered under the same name returns None.

Nothing is global but the name: the plan travels as a keyword argument of the forward, so forwards with different plans
may run in different threads. What a plan cannot honour (attention soft-capping, sinks, a sliding window that bites) is
noted by `Survey`, the plan of the proof at load, and refused there; it is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from treadle.core.errors import ModelError

NAME = "treadle"
"""The attention implementation that models are loaded with."""

UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask", "alibi")
"""Arguments that change the scores in ways a plan does not know; each must be absent or None."""


class AttentionPlan(Protocol):
    """Who sees whom in one forward, and where keys and values live."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of one layer over the flat tokens of this forward.

        q is [1, Hq, T, D], k and v are [1, Hk, T, D] with Hq a multiple of Hk, rotary positions already applied.
        Returns [1, T, Hq, D]. Scores are q.k * scale.
        """
        ...


class CausalPlan:
    """All T tokens are one sequence; each sees itself and those before it. The plain reading of a flat forward."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Causal attention. Returns [1, T, Hq, D]."""
        grouped = q.shape[1] != k.shape[1]
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)


class MaskPlan:
    """Attention under an explicit mask: the slow, obvious reference for every other plan."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        """bool [T, T]; row q, column k is True where token q sees token k."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Masked attention. Returns [1, T, Hq, D]."""
        grouped = q.shape[1] != k.shape[1]
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)


@dataclass(slots=True)
class Survey:
    """A plan that notes what each layer's attention looks like while it lets `plan` do the work."""

    plan: AttentionPlan
    layers: list[int] = field(default_factory=list)
    """Layer numbers in the order of their calls."""
    shapes: set[tuple[int, int, int, int, int]] = field(default_factory=set)
    """Distinct (Hq, Hk, D of queries, D of keys, D of values)."""
    windows: set[int] = field(default_factory=set)
    """Sliding windows, in tokens, that layers asked for."""
    refused: set[str] = field(default_factory=set)
    """Names of UNSUPPORTED arguments that were given."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """What `plan` computes."""
        self.layers.append(layer)
        self.shapes.add((q.shape[1], k.shape[1], q.shape[3], k.shape[3], v.shape[3]))
        return self.plan.attend(layer, q, k, v, scale)

    def note(self, arguments: Mapping[str, Any]) -> None:
        """Look at what the model passed beside queries, keys and values."""
        window = arguments.get("sliding_window")
        if isinstance(window, int):
            self.windows.add(window)
        self.refused.update(name for name in UNSUPPORTED if arguments.get(name) is not None)


def _dispatch(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: AttentionPlan | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls, once per layer. Raises ModelError without a plan."""
    if plan is None:
        kind = type(module).__name__
        raise ModelError(f"{kind}: no attention plan reached the layer; call the model through Policy.hidden")
    if isinstance(plan, Survey):
        plan.note(rest)
    layer: Any = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(int(layer), query, key, value, scale), None


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The mask function: plans need no mask."""


def register() -> None:
    """Make the hook known to transformers. Safe to call again."""
    AttentionInterface.register(NAME, _dispatch)
    AttentionMaskInterface.register(NAME, _no_mask)
