from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM

from treadle.models import Policy, build_tiny

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama. Do not write into it."""
    return build_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return Policy.load(tiny)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Writes a tiny random model of a named architecture, with weights large enough to matter."""

    def _build(config_class: str, extra: Mapping[str, Any] | None = None, *, bare: bool = False) -> Path:
        shape = {"vocab_size": 97} if bare else SHAPE
        config = getattr(transformers, config_class)(**{**shape, **(extra or {})})
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in module.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.25)
        folder = tmp_path / config_class
        module.save_pretrained(folder)
        return folder

    return _build


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama in a GGUF file: linear layers in Q4_1, the rest in float32, byte vocabulary, ChatML."""
    path = tmp_path_factory.mktemp("gguf") / "Tiny-Q4_1.gguf"
    rng = np.random.default_rng(0)
    hidden, inner, kv, layers = 64, 128, 32, 2
    alphabet = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(alphabet) + 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def put(name: str, *shape: int) -> None:
        data = rng.standard_normal(shape).astype(np.float32) * 0.1
        if len(shape) == 1:
            writer.add_tensor(name, data + 1)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    put("token_embd.weight", len(tokens), hidden)
    put("output_norm.weight", hidden)
    for layer in range(layers):
        put(f"blk.{layer}.attn_norm.weight", hidden)
        put(f"blk.{layer}.ffn_norm.weight", hidden)
        put(f"blk.{layer}.attn_q.weight", hidden, hidden)
        put(f"blk.{layer}.attn_k.weight", kv, hidden)
        put(f"blk.{layer}.attn_v.weight", kv, hidden)
        put(f"blk.{layer}.attn_output.weight", hidden, hidden)
        put(f"blk.{layer}.ffn_gate.weight", inner, hidden)
        put(f"blk.{layer}.ffn_up.weight", inner, hidden)
        put(f"blk.{layer}.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
