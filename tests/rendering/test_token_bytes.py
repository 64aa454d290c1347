"""Text to ids and back, byte by byte."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from treadle.core.errors import RenderError
from treadle.core.ports import Tokenizer as TokenizerPort
from treadle.rendering import PlainParser, Renderer
from treadle.rendering.tokens import Tokens

Folder = Callable[[str], Path]
relaxed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sentencepiece(normalizer: bool) -> Tokenizer:
    built = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    if normalizer:
        built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=tokens, show_progress=False)
    built.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog ls -la | wc = [ ] ; ` \n 0 1 2 x"] * 4, trainer
    )
    state = json.loads(built.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(state))


@given(text=st.text(max_size=40).map(lambda t: t.encode("utf-8", "replace").decode()))
@relaxed
def test_decoding_undoes_encoding(folder: Folder, text):
    tokens = Tokens.load(folder("qwen-like"))
    assert tokens.decode(tokens.encode(text)) == text


@given(ids=st.lists(st.integers(0, 520), max_size=30))
@relaxed
def test_decoding_equals_the_backends_own(folder: Folder, ids):
    path = folder("smollm2")
    backend = Tokenizer.from_file(str(path / "tokenizer.json"))
    known = [i for i in ids if backend.id_to_token(i) is not None and i not in backend.get_added_tokens_decoder()]
    assert Tokens.load(path).decode(known) == backend.decode(known, skip_special_tokens=False)


@given(ids=st.lists(st.integers(0, 520), max_size=30), at=st.integers(0, 30), size=st.integers(1, 9))
@relaxed
def test_the_tokens_of_a_piece_of_text_write_that_piece(folder: Folder, ids, at, size):
    tokens = Tokens.load(folder("smollm2"))
    decoded = tokens.locate(ids)
    assert decoded.text == tokens.decode(ids)
    start, end = decoded.tokens(at, min(at + size, len(decoded.text)))
    piece = decoded.text[at : at + size]
    if "\ufffd" not in decoded.text:
        assert piece in tokens.decode(ids[:start] + ids[start:end])
        assert not piece or piece in tokens.decode(ids[start:end]) or "\ufffd" in tokens.decode(ids[start:end])


def test_a_character_that_is_split_between_tokens_belongs_to_all_of_them(folder: Folder):
    tokens = Tokens.load(folder("smollm2"))
    ids = tokens.encode("x\U0001f9ffy")
    start, end = tokens.locate(ids).tokens(1, 2)
    assert end - start >= 2 and tokens.decode(ids[start:end]) == "\U0001f9ff"


def test_a_piece_of_text_is_found_where_its_tokens_end_inside_characters(folder: Folder):
    tokens = Tokens.load(folder("smollm2"))
    ids = tokens.encode("ab\U0001f9ff\U0001f9fecd")
    decoded = tokens.locate(ids)
    assert [tokens.decode(ids[slice(*decoded.tokens(at, at + 1))]) for at in range(2, 5)] == [
        "\U0001f9ff",
        "\U0001f9fe",
        "c",
    ]


def test_an_id_beyond_the_vocabulary_has_no_text(folder: Folder):
    assert Tokens.load(folder("smollm2")).decode([10_000]) == ""


def test_added_white_space_is_a_word_and_no_control_token(folder: Folder, tmp_path):
    built = Tokenizer.from_file(str(folder("smollm2") / "tokenizer.json"))
    built.add_tokens([AddedToken("    ", normalized=False, special=False)])
    tokens = Tokens(built)
    ids = tokens.encode("a    b")
    assert "    " not in tokens.controls and built.token_to_id("    ") in ids
    assert tokens.decode(ids) == "a    b"


@pytest.mark.parametrize("normalizer", [True, False])
def test_a_sentencepiece_tokenizer_sets_no_space_before_a_piece(normalizer):
    tokens = Tokens(sentencepiece(normalizer))
    text = " the fox\n\n  é😀 [1]"
    assert tokens.decode(tokens.encode(text)) == text
    assert tokens.decode([*tokens.encode("the"), *tokens.encode("fox")]) == "thefox"


def test_a_control_token_that_takes_the_space_beside_it_takes_it_here(folder: Folder):
    built = Tokenizer.from_file(str(folder("smollm2") / "tokenizer.json"))
    built.add_special_tokens([AddedToken("<|turn|>", rstrip=True, lstrip=True, normalized=False)])
    tokens = Tokens(built)
    pattern = re.compile(re.escape("<|turn|>"))
    assert tokens.encode_written("a <|turn|>\n b", pattern) == built.encode("a <|turn|>\n b").ids


def test_a_tokenizer_with_a_decoder_of_another_kind_is_refused(folder: Folder):
    built = Tokenizer.from_file(str(folder("smollm2") / "tokenizer.json"))
    built.decoder = decoders.WordPiece()
    with pytest.raises(RenderError, match="expected a byte-level"):
        Tokens(built)


def test_a_tokenizer_that_loses_text_is_refused(folder: Folder, tmp_path):
    built = Tokenizer.from_file(str(folder("smollm2") / "tokenizer.json"))
    built.normalizer = normalizers.Strip()
    built.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RenderError, match="loses text"):
        Tokens.load(tmp_path)


def test_a_renderer_is_a_tokenizer(render):
    renderer: TokenizerPort = render("smollm2", PlainParser())
    assert isinstance(renderer, Renderer)
    assert renderer.decode(renderer.encode("as it is")) == "as it is"
