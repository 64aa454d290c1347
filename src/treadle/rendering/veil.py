"""The veil keeps content from forging control tokens on its way through a chat template (invariant 12).

A control string is the text of an added token, flagged special or not. Before the template runs, each control string
in content is replaced by one private-use code point that no content holds; after it ran, the control strings in the
rendered text are the template's own, and the code points are turned back into text, which is encoded without control
ids. A guard (one more code point, later dropped) is set at an end of a content that could complete a control string
together with what the template writes next to it.

    content --hide--> template --split at control strings--> literal pieces --reveal--> plain encoding
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from treadle.core.errors import RenderError

_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _code_points() -> Iterator[str]:
    return map(chr, chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)))


class Controls:
    """The control strings of a tokenizer and how to find them in text."""

    def __init__(self, strings: Sequence[str], *, written: str) -> None:
        """`written` is the template's source: private-use characters in it are left alone."""
        ordered = sorted(strings, key=lambda s: (-len(s), s))
        first = "".join(sorted({re.escape(s[0]) for s in ordered}))
        self.pattern = re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, ordered))})" if ordered else r"(?!)")
        self._taken = frozenset(_PRIVATE.findall("".join(ordered) + written))
        self._heads = frozenset(s[:i] for s in ordered for i in range(1, len(s)))
        self._tails = frozenset(s[i:] for s in ordered for i in range(1, len(s)))
        self._longest = len(ordered[0]) if ordered else 0
        self._firsts = frozenset(s[0] for s in ordered)
        self._lasts = frozenset(s[-1] for s in ordered)

    def bare(self, content: str) -> bool:
        """Whether nothing of a content needs to be veiled, whatever stands beside it."""
        if not content.isascii() and _PRIVATE.search(content) is not None:
            return False
        return self.pattern.search(content) is None and not self.opens(content) and not self.closes(content)

    def opens(self, text: str) -> bool:
        """Whether the end of `text` may be the beginning of a control string."""
        if self._firsts.isdisjoint(text[-self._longest :]):
            return False
        return any(text[-n:] in self._heads for n in range(1, min(len(text), self._longest) + 1))

    def closes(self, text: str) -> bool:
        """Whether the beginning of `text` may be the end of a control string."""
        if self._lasts.isdisjoint(text[: self._longest]):
            return False
        return any(text[:n] in self._tails for n in range(1, min(len(text), self._longest) + 1))

    def veil(self, contents: Iterable[str]) -> Veil:
        """A veil for these contents. Raises RenderError if they use up the private-use code points."""
        taken, strings = set(self._taken), set[str]()
        for content in contents:
            taken.update(_PRIVATE.findall(content))
            strings.update(self.pattern.findall(content))
        free = (c for c in _code_points() if c not in taken)
        try:
            return Veil(
                controls=self, sentinel=next(free), guard=next(free), hidden={s: next(free) for s in sorted(strings)}
            )
        except StopIteration:
            raise RenderError(
                "content uses every private-use code point of Unicode; none is left to hide with"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Veil:
    """Code points chosen for the contents of one rendering."""

    controls: Controls
    sentinel: str
    """Stands for an assistant's turn; occurs nowhere else."""
    guard: str
    hidden: dict[str, str]
    """Control string to code point."""

    def hide(self, content: str, *, keep: tuple[str, ...] = ()) -> str:
        """Content for the template; control strings in `keep` stay what they are."""
        text = self.controls.pattern.sub(lambda m: m[0] if m[0] in keep else self.hidden[m[0]], content)
        head = self.guard if self.controls.closes(text) else ""
        tail = self.guard if self.controls.opens(text) else ""
        return head + text + tail

    def reveal(self, text: str) -> str:
        """Content back from a piece of rendered text."""
        if not self.hidden:
            return text.replace(self.guard, "")
        back = {ord(mark): string for string, mark in self.hidden.items()}
        return text.translate(back | {ord(self.guard): ""})


def sound(content: str) -> str:
    """Content that can be encoded: lone surrogates become U+FFFD, pairs of them the character they mean."""
    if content.isascii() or _SURROGATE.search(content) is None:
        return content
    return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
