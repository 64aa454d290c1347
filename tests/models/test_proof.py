"""Models that the hook cannot carry are refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, T5Config, T5ForConditionalGeneration

from treadle.core.errors import ModelError
from treadle.models import AttentionPlan, Policy
from treadle.models.proof import OTHER_WINDOWS, STATE_SIZES, prove, refuse_config

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma2Config", {"head_dim": 8, "sliding_window": 256}, "softcap"),
    ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 64}, "last 64 tokens, the context is 256"),
    ("MistralConfig", {"sliding_window": 128}, "last 128 tokens, the context is 256"),
    ("Qwen3NextConfig", {"head_dim": 8}, "linear_attention"),
    ("Lfm2Config", {"full_attn_idxs": [1]}, "layers of type conv"),
    ("MiniMaxConfig", {"head_dim": 8, "num_local_experts": 2}, "layers of type linear_attention"),
    ("StableLmConfig", {}, "attention interface"),
    ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
]


@pytest.mark.parametrize(("family", "extra", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_model_that_needs_more_than_a_plan_is_refused(
    family: str, extra: dict[str, Any], reason: str, build: Callable[..., Path]
) -> None:
    folder = build(family, extra)
    with pytest.raises(ModelError, match=reason):
        Policy.load(folder)


@pytest.mark.parametrize("family", ["MambaConfig", "RwkvConfig"])
def test_a_recurrent_model_is_refused(family: str, build: Callable[..., Path]) -> None:
    folder = build(family, {"hidden_size": 32, "num_hidden_layers": 2}, bare=True)
    with pytest.raises(ModelError, match="order of tokens in a batch"):
        Policy.load(folder)


def refused(config: dict[str, Any], tiny: Path) -> str:
    """Why a Llama whose config has these keys besides is refused; empty when it is not."""
    known = LlamaConfig(**{**json.loads((tiny / "config.json").read_text()), **config})
    try:
        refuse_config("odd", known, 128)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", STATE_SIZES)
def test_state_that_a_config_names_is_refused_whatever_the_model_is_called(key: str, tiny: Path) -> None:
    assert f"recurrent state {key}, whose results depend on the order of tokens" in refused({key: 16}, tiny)
    assert not refused({key: None}, tiny)


@pytest.mark.parametrize("key", OTHER_WINDOWS)
def test_a_window_under_any_name_is_refused_when_it_bites(key: str, tiny: Path) -> None:
    assert "see only the last 64 tokens, the context is 128" in refused({key: 64}, tiny)
    assert not refused({key: 128}, tiny)
    assert not refused({key: 0}, tiny)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=97, d_model=32, d_ff=32, num_layers=1, num_heads=4, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="encoder-decoder"):
        Policy.load(tmp_path)


def test_a_sliding_window_no_shorter_than_the_chosen_context_is_no_window(build: Callable[..., Path]) -> None:
    folder = build("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 64})
    assert Policy.load(folder, context=64).dims.context == 64


def test_a_context_beyond_the_model_is_refused(tiny: Path) -> None:
    with pytest.raises(ModelError, match="context is 2000, the model has positions for 1024"):
        Policy.load(tiny, context=2000)


def test_an_unknown_architecture_is_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "weaver"}))
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match="weaver") as caught:
        Policy.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_state_that_leaks_along_flat_indices_is_caught_by_the_proof(policy: Policy) -> None:
    class Shifted:
        def hidden(self, ids: Tensor, pos: Tensor, plan: AttentionPlan) -> Tensor:
            states = policy.hidden(ids, pos, plan)
            return states + 0.1 * states.roll(1, 0)

        def logits(self, hidden: Tensor) -> Tensor:
            return policy.logits(hidden)

    with pytest.raises(ModelError, match="other logits when sequences share one forward"):
        prove("shifted", policy.module, Shifted(), 64)


def test_an_output_scaling_that_logits_does_not_know_is_caught_by_the_proof(policy: Policy) -> None:
    class Scaled:
        def hidden(self, ids: Tensor, pos: Tensor, plan: AttentionPlan) -> Tensor:
            return policy.hidden(ids, pos, plan)

        def logits(self, hidden: Tensor) -> Tensor:
            return policy.logits(hidden) * 1.01

    with pytest.raises(ModelError, match="other logits"):
        prove("scaled", policy.module, Scaled(), 64)


def test_the_proof_leaves_the_random_generator_alone(tiny: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Policy.load(tiny)
    assert torch.equal(torch.rand(3), expected)
