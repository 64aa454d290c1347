"""The tiny model: deterministic, byte-exact, and what transformers expects."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from treadle.models import Policy, build_tiny
from treadle.models.tiny import byte_tokenizer


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    first = files(build_tiny(tmp_path / "a", seed=3))
    assert files(build_tiny(tmp_path / "b", seed=3)) == first
    assert files(build_tiny(tmp_path / "c", seed=4))["model.safetensors"] != first["model.safetensors"]


def test_its_shape_is_what_was_asked(tmp_path: Path) -> None:
    dims = Policy.load(build_tiny(tmp_path, layers=3, hidden=32, heads=8, kv_heads=4, context=77)).dims
    assert (dims.layers, dims.hidden, dims.heads, dims.kv_heads, dims.head_dim) == (3, 32, 8, 4, 4)
    assert (dims.context, dims.vocab) == (77, 259)


TOKENIZER = byte_tokenizer()


@given(st.text())
def test_any_text_round_trips_one_token_per_byte(text: str) -> None:
    backend: Tokenizer = TOKENIZER
    plain = text.replace("<|", "<")
    ids = backend.encode(plain).ids
    assert len(ids) == len(plain.encode())
    assert backend.decode(ids) == plain


@pytest.mark.parametrize(("token", "number"), [("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)])
def test_control_tokens_are_single_ids(token: str, number: int, tiny: Path) -> None:
    assert AutoTokenizer.from_pretrained(tiny)(token).input_ids == [number]


def test_its_template_is_chatml(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    messages = [{"role": "user", "content": "ls"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nls<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token_id == 2
