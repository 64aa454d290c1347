"""Parsers turn the text of one assistant turn into an action and say which characters form which part.

A parser never sees ids: `Renderer.parse` gives it text and maps its character spans to tokens. The spans of a turn
lie in order, do not overlap and leave nothing out, so that each character belongs to one part; the part `text` is
whatever is none of the others. The number of `code` spans is that of `Action.blocks`, the number of `call` spans that
of `Action.calls`, in the same order.

Thoughts are no action: what stands between `<think>` and `</think>` is never read as a block or a call, nor is
anything after a `<think>` that is left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from treadle.core.actions import Action

THINK = "<think>"
THOUGHT = "</think>"


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Characters start..end (exclusive) of a turn that form one part."""

    kind: str
    """`text`, `code`, `call` or `thought`."""
    start: int
    end: int


class Parser(Protocol):
    """Reads assistant turns. Never raises: what it cannot read stays text, or a call without arguments."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings by which a turn speaks to this parser: in an assistant's text they may be control tokens."""
        ...

    def parse(self, text: str, *, truncated: bool) -> tuple[Action, tuple[TextSpan, ...]]:
        """The action in `text`, and its parts as spans."""
        ...


def thought_end(text: str, start: int) -> int:
    """Where the thought that opens at `start` ends.

    Thoughts nest. Where they do not balance, the first `</think>` ends them (a thought may mention `<think>`);
    where there is none, the thought runs to the end of the text.
    """
    depth, at, first = 0, start, -1
    while True:
        opened, closed = text.find(THINK, at), text.find(THOUGHT, at)
        if closed < 0:
            return first if first >= 0 else len(text)
        if 0 <= opened < closed:
            depth, at = depth + 1, opened + len(THINK)
            continue
        depth, at = depth - 1, closed + len(THOUGHT)
        first = at if first < 0 else first
        if depth <= 0:
            return at


def fill(parts: list[TextSpan], length: int) -> tuple[TextSpan, ...]:
    """The parts with `text` spans put into the gaps between them."""
    spans: list[TextSpan] = []
    at = 0
    for part in parts:
        if part.start > at:
            spans.append(TextSpan("text", at, part.start))
        spans.append(part)
        at = part.end
    if at < length:
        spans.append(TextSpan("text", at, length))
    return tuple(spans)
