"""Which models the hook can carry, decided before one is trusted.

Two gates. `refuse_config` reads the config: encoder-decoders, recurrent or linear-attention layers, and rotary scalings
that look at the longest sequence of a batch are refused by name. `prove` then runs the model: a prefix with two
branches in one flat forward under a tree mask must give the logits of the two separate plain forwards. State that flows
along flat indices (token shift, convolutions), attention that ignores the hook, extra terms in the scores, and output
scalings that `Policy.logits` does not know all break that equality, whatever the architecture is called. The same
forward shows the model's dimensions, so they are measured, not guessed from config keys.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from treadle.core.errors import ModelError
from treadle.models.attention import NAME, AttentionPlan, MaskPlan, Survey
from treadle.models.dims import Dims

PREFIX, FIRST, SECOND = 7, 5, 4
"""Tokens of the proof's prefix and of its two branches."""
TOLERANCE = {torch.float64: 2e-4, torch.float32: 2e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""Largest allowed difference of logits, as a share of the largest logit. In float64 too the plain forward computes
norms, rotary angles and softmax in float32."""
LAYER_WINDOWS = {
    "full_attention": None,
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}
"""Layer types that the hook can carry -> the config key of how far they see."""
OTHER_WINDOWS = ("sliding_window_size", "window_size", "attention_window_size", "local_attention")
"""Config keys that some architectures keep a window under which their layers count along flat indices."""
STATE_SIZES = ("ssm_state_size", "mamba_d_state", "state_size", "conv_L_cache", "linear_conv_kernel_dim", "lru_width")
"""Config keys of state that tokens hand on in the order of a batch: state spaces, convolutions, linear recurrences."""
GLOBAL_ROPE = ("dynamic", "longrope")
"""Rotary scalings that change with the longest position in the batch once that passes the original context."""


class Forward(Protocol):
    """The two halves of a policy's forward."""

    def hidden(self, ids: Tensor, pos: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states [T, hidden]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [E, vocab]."""
        ...


def refuse_config(name: str, config: Any, context: int | None) -> int:
    """Raise ModelError for an architecture that cannot be used; return the context length in tokens."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"model `{name}`: {config.model_type} is an encoder-decoder; Treadle needs a decoder-only model"
        )
    try:
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise ModelError(f"model `{name}`: transformers has no causal language model for {config.model_type}") from None
    text = config.get_text_config(decoder=True)
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - set(LAYER_WINDOWS))
    kept = [key for key in STATE_SIZES if isinstance(getattr(text, key, None), int)]
    if kind._is_stateful or odd or kept:
        what = f"layers of type {', '.join(odd)}" if odd else " ".join(["recurrent state", *kept])
        raise ModelError(
            f"model `{name}`: {config.model_type} has {what}, whose results depend on the order of tokens in a batch; "
            f"use a model with softmax attention in every layer"
        )
    if not kind._supports_attention_backend:
        raise ModelError(
            f"model `{name}`: {kind.__name__} has attention of its own that transformers' attention interface "
            f"cannot replace; use another architecture (Llama, Qwen, Mistral, Gemma 3, Phi ...)"
        )
    longest = getattr(text, "max_position_embeddings", None)
    length = context or longest
    if length is None:
        raise ModelError(f"model `{name}`: its config names no context length; give context=<tokens>")
    if longest is not None and length > longest:
        raise ModelError(f"model `{name}`: context is {length}, the model has positions for {longest} tokens")
    if length < 1:
        raise ModelError(f"model `{name}`: context is {length}, expected at least 1 token")
    _refuse_rope(name, text, length)
    for layer_type in set(getattr(text, "layer_types", None) or ()):
        key = LAYER_WINDOWS[layer_type]
        refuse_window(name, getattr(text, key, None) if key else None, length)
    for key in OTHER_WINDOWS:
        window = getattr(text, key, None)
        if isinstance(window, int) and window > 0:
            refuse_window(name, window, length)
    return int(length)


def refuse_window(name: str, window: int | None, context: int) -> None:
    """Raise ModelError when a sliding window of `window` tokens would hide tokens within `context`."""
    if window is not None and window < context:
        raise ModelError(
            f"model `{name}`: some layers see only the last {window} tokens, the context is {context}; "
            f"load it with context={window} or less, or use a model without sliding windows"
        )


def _refuse_rope(name: str, text: Any, context: int) -> None:
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict)]
    for part in nested or [rope]:
        original = part.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if part.get("rope_type") in GLOBAL_ROPE and (original is None or context > original):
            limit = f"load it with context={original} or less, or " if original else ""
            raise ModelError(
                f"model `{name}`: its rotary scaling `{part['rope_type']}` depends on the longest sequence of a batch, "
                f"so sequences would disturb each other; {limit}use another model"
            )


def prove(name: str, module: Any, forward: Forward, context: int) -> Dims:
    """Show that the flat forward equals the plain one and measure the model. Raises ModelError when it does not."""
    vocab = int(module.get_input_embeddings().weight.shape[0])
    ids = torch.randint(vocab, (PREFIX + FIRST + SECOND,), generator=torch.Generator().manual_seed(0))
    fork = PREFIX + FIRST
    pos = torch.cat([torch.arange(fork), torch.arange(PREFIX, PREFIX + SECOND)])
    survey = Survey(MaskPlan(_tree_mask()))
    with torch.no_grad():
        try:
            hidden = forward.hidden(ids, pos, survey)
            tree = forward.logits(hidden)
        except (TypeError, IndexError, RuntimeError) as error:
            raise ModelError(
                f"model `{name}`: {type(module).__name__} does not run with Treadle's attention: {error}"
            ) from error
        module.set_attn_implementation("eager")
        first = module(input_ids=ids[None, :fork], use_cache=False).logits[0]
        second = module(input_ids=torch.cat([ids[:PREFIX], ids[fork:]])[None], use_cache=False).logits[0]
        module.set_attn_implementation(NAME)
    dims = _measured(name, survey, hidden, tree, context)
    plain = torch.cat([first, second[PREFIX:]])
    gap = float((tree - plain).abs().max() / plain.abs().max().clamp_min(1e-12))
    allowed = TOLERANCE[next(module.parameters()).dtype]
    if not gap <= allowed:
        raise ModelError(
            f"model `{name}`: {type(module).__name__} gives other logits when sequences share one forward "
            f"(relative difference {gap:.1e}, allowed {allowed:.0e}); its layers do more than attention over the "
            f"visible tokens, use another architecture"
        )
    return dims


def _tree_mask() -> Tensor:
    """bool [T, T]: prefix, then two branches that see the prefix and themselves but not each other."""
    total = PREFIX + FIRST + SECOND
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    mask[PREFIX + FIRST :, PREFIX : PREFIX + FIRST] = False
    return mask


def _measured(name: str, survey: Survey, hidden: Tensor, logits: Tensor, context: int) -> Dims:
    if survey.refused:
        raise ModelError(
            f"model `{name}`: its attention uses {', '.join(sorted(survey.refused))}, which attention plans do not "
            f"support; use another architecture"
        )
    for window in survey.windows:
        refuse_window(name, window, context)
    count = len(survey.layers)
    if not count or survey.layers != list(range(count)):
        raise ModelError(
            f"model `{name}`: its attention layers call as {survey.layers}, expected 0, 1, 2 ... once each"
        )
    (heads, kv_heads, head_dim, key_dim, value_dim), *others = sorted(survey.shapes)
    if others or not head_dim == key_dim == value_dim or heads % kv_heads:
        raise ModelError(
            f"model `{name}`: its layers differ in heads, or keys and values in size "
            f"(heads, kv heads, q, k, v: {sorted(survey.shapes)}); use a model with equal layers"
        )
    return Dims(
        layers=count,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden.shape[-1],
        vocab=logits.shape[-1],
        context=context,
    )
