"""Text to ids and back over a private tokenizer backend, with control tokens apart from text.

`encode` knows no control tokens: the backend is a fresh one over the same model, made without the added tokens, so no
flag that another user of the tokenizer sets can bring them back. Control ids enter only where `encode_written` finds a
control string in text that a template wrote.

Decoding is by bytes: every id has its bytes (byte-level alphabet, or SentencePiece's with byte fallback), which makes
the text of any ids the concatenation of its tokens and lets `Decoded` say which token each character came from, also
where a token ends inside a character.
"""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.core.errors import RenderError
from treadle.rendering.veil import sound

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

SHORT, MOST_SHORT = 16, 4096
"""Literals of up to so many characters are encoded once, and so many of them are kept: the roles and line ends of a
template come in every bridge."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PROBE = " a  b\n\n\tdéjà 你好 😀 x=[1, 20];\n```bash\nls -l\n```\n"


def _byte_alphabet() -> dict[str, int]:
    """Character to byte of GPT-2's byte-level alphabet: printable Latin-1 stands for itself, the rest is moved up."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of some ids and where each token lies in it."""

    text: str
    starts: tuple[int, ...]
    """Per token, the character that its first byte belongs to. int[n], ascending"""
    ends: tuple[int, ...]
    """Per token, one past the character that its last byte belongs to. int[n], ascending"""

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that wrote characters start..end, as a half-open range; empty for an empty range."""
        if start >= end:
            at = bisect_left(self.starts, start)
            return at, at
        return bisect_right(self.ends, start), bisect_left(self.starts, end)


class Literal(NamedTuple):
    """Plain text between two control tokens."""

    text: str
    left: bool
    """The control token before it takes its white space."""
    right: bool
    """The one behind it does."""


class Tokens:
    """A tokenizer whose control tokens are only where they are asked for. Raises RenderError where it loses text."""

    def __init__(self, backend: Tokenizer) -> None:
        added = backend.get_added_tokens_decoder()
        self._plain = _without_added(backend, [t for t in added.values() if not t.content.strip()])
        kept = {i for i, t in added.items() if self._plain.token_to_id(t.content) == i and not t.content.strip()}
        self._control = {t.content: (i, t.lstrip, t.rstrip) for i, t in added.items() if i not in kept}
        self._bytes = {i: t.content.encode() for i, t in added.items()}
        self._alphabet = _alphabet(backend)
        self._ids = frozenset(i for i, _, _ in self._control.values())
        self._short: dict[str, Sequence[int]] = {}

    @classmethod
    def load(cls, folder: Path) -> Tokens:
        """The tokenizer of a model folder. Raises RenderError if there is none that can be used."""
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise RenderError(f"{folder}: no tokenizer.json; save the model with a fast tokenizer")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # the backend raises bare Exception for a file it cannot read
            raise RenderError(f"{path}: cannot be read: {error}") from error
        tokens = cls(backend)
        tokens._check(path)
        return tokens

    @property
    def controls(self) -> dict[str, int]:
        """Control string to id: every added token that is not mere white space."""
        return {text: i for text, (i, _, _) in self._control.items()}

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of `controls`."""
        return self._ids

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never a control id. Lone surrogates become U+FFFD."""
        text = sound(text)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self._ids.isdisjoint(ids):
            return ids
        # The model itself has a control string as a word: cut inside each, so that no word spans it.
        pattern = "|".join(f"(?<={re.escape(s[:1])})(?={re.escape(s[1:])})" for s in self._control if len(s) > 1)
        ids = [i for part in re.split(pattern, text) for i in self._plain.encode(part, add_special_tokens=False).ids]
        if not self._ids.isdisjoint(ids):
            raise RenderError(f"plain text {text[:80]!r} encodes to control ids {sorted(self._ids.intersection(ids))}")
        return ids

    def encode_written(
        self, text: str, pattern: re.Pattern[str], reveal: Callable[[str], str] = lambda piece: piece
    ) -> list[int]:
        """Ids of text in which the matches of `pattern` (control strings) are control tokens.

        The pieces between go through `reveal` and are encoded as plain text. A control token that takes the white
        space beside it, as the tokenizer's file says, takes it here.
        """
        ids: list[int] = []
        for piece in self.split(text, pattern, reveal):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self.literal(piece)
        return ids

    def split(
        self, text: str, pattern: re.Pattern[str], reveal: Callable[[str], str] = lambda piece: piece
    ) -> Iterator[Literal | int]:
        """The control ids of such a text and the literals around them, in order."""
        at, eats = 0, False
        for found in pattern.finditer(text):
            control, left, right = self._control[found[0]]
            yield Literal(reveal(text[at : found.start()]), eats, left)
            yield control
            at, eats = found.end(), right
        yield Literal(reveal(text[at:]), eats, False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self._piece, ids)).decode("utf-8", "replace")

    def locate(self, ids: Sequence[int]) -> Decoded:
        """As `decode`, with the place of every token."""
        pieces = [self._piece(i) for i in ids]
        whole = b"".join(pieces)
        if whole.isascii():  # a byte is a character
            lasts = tuple(accumulate(map(len, pieces)))
            return Decoded(whole.decode(), (0, *lasts)[: len(lasts)], lasts)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        done = 0
        for piece in pieces:
            starts.append(done)
            part = decoder.decode(piece)
            parts.append(part)
            done += len(part)
            ends.append(done + bool(decoder.getstate()[0]))
        rest = decoder.decode(b"", True)
        return Decoded("".join(parts) + rest, tuple(starts), tuple(min(end, done + len(rest)) for end in ends))

    def literal(self, piece: Literal) -> Sequence[int]:
        """Ids of a literal."""
        text = piece.text.lstrip() if piece.left else piece.text
        text = text.rstrip() if piece.right else text
        if len(text) > SHORT:
            return self.encode(text)
        known = self._short.get(text)
        if known is None:
            known = self.encode(text) if text else ()
            if len(self._short) < MOST_SHORT:
                self._short[text] = known
        return known

    def _piece(self, i: int) -> bytes:
        known = self._bytes.get(i)
        if known is None:
            token = self._plain.id_to_token(int(i))
            known = self._bytes[i] = b"" if token is None else self._alphabet(token)
        return known

    def _check(self, path: Path) -> None:
        got = self.decode(self.encode(_PROBE))
        if got != _PROBE:
            raise RenderError(f"{path}: the tokenizer loses text: got {got!r}, expected {_PROBE!r}")


def _without_added(backend: Tokenizer, kept: Sequence[AddedToken]) -> Tokenizer:
    """A backend over the same model that knows no added tokens but `kept`, and sets no space before a text."""
    from tokenizers import Tokenizer

    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    states = {name: json.loads(part.__getstate__()) if part is not None else None for name, part in parts.items()}
    frame = Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": _spaceless(states["normalizer"]),
                "pre_tokenizer": _spaceless(states["pre_tokenizer"]),
                "post_processor": None,
                "decoder": None,
                "model": {"type": "BPE", "vocab": {}, "merges": []},
            }
        )
    )
    plain = Tokenizer(backend.model)
    if frame.normalizer is not None:
        plain.normalizer = frame.normalizer
    if frame.pre_tokenizer is not None:
        plain.pre_tokenizer = frame.pre_tokenizer
    plain.add_tokens(list(kept))
    return plain


def _spaceless(state: Any) -> Any:
    """A normalizer's or pre-tokenizer's state, changed so that no space is set before the text."""
    if not isinstance(state, dict):
        return state
    for inner in ("normalizers", "pretokenizers"):
        if inner in state:
            parts = [_spaceless(part) for part in state[inner] if part.get("type") != "Prepend"]
            return {**state, inner: parts}
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {**state, **{key: value for key, value in changes.items() if key in state}}


def _alphabet(backend: Tokenizer) -> Callable[[str], bytes]:
    """How a token of this tokenizer is spelled in bytes."""
    state = json.dumps(json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None)
    if '"ByteLevel"' in state:
        return _from_byte_level
    if '"Metaspace"' in state or '"ByteFallback"' in state:
        return _from_sentencepiece
    raise RenderError(f"tokenizer decoder {state[:80]}: expected a byte-level or SentencePiece one")


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[c] for c in token)
    except KeyError:
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()
