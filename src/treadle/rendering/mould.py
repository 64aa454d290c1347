"""Bridges from a mould: what a template writes around messages of one kind, made once and filled in on every turn.

    roles and names of the messages -> mould: ids, text with a gap, ids, text with a gap, ... -> ids of this turn

A template that only writes contents (see `opaque`) writes the same around all messages of the same roles. So the first
bridge of a kind is rendered with marks in place of contents; what lies between control tokens and holds no mark is
tokenised then, the rest with the content in its gap, as the template's text would be. That is the same text, with the
same ids, and no template runs.

What might come out otherwise is not filled in and goes the long way: content that holds, begins or ends a control
string, private-use characters, tool calls, a message that looks like a folded tool result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.core.messages import Message
from treadle.rendering.layout import FOLDED, Layout
from treadle.rendering.tokens import Literal, Tokens
from treadle.rendering.veil import Controls, sound

MOST = 256
"""Kinds of bridges that are kept."""
_FIRST = 0xF000
"""Code point of the first mark."""
_MARK = re.compile("([\uf000-\uf0ff])")
_MOST_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class Gap:
    """Text between two control tokens with contents in it."""

    parts: tuple[str | int, ...]
    """Text, or the number of the message whose content stands there."""
    left: bool
    """The control token before it takes its white space."""
    right: bool
    """The one behind it does."""

    def filled(self, contents: Sequence[str]) -> Literal:
        """The text with these contents."""
        text = "".join([part if isinstance(part, str) else contents[part] for part in self.parts])
        return Literal(text, self.left, self.right)


Mould = tuple[tuple[int, ...] | Gap, ...]
Kind = tuple[bool | tuple[str, str, str], ...]
"""Whether the turn ended by itself; role, name and number of the call of each message."""


class Moulds:
    """The moulds of one template. May be shared by threads: a mould that two make at once is the same."""

    def __init__(self, layout: Layout, controls: Controls, tokens: Tokens, *, lead: str) -> None:
        """`lead` is what the bridge leaves out behind a turn that ended by itself."""
        self._layout, self._controls, self._tokens, self._lead = layout, controls, tokens, lead
        reads = layout.template.reads
        own = "".join([layout.template.source, *tokens.controls])
        self._opaque = reads.opaque and _MARK.search(own) is None
        self._ids_matter = "tool_call_id" in reads.names
        self._kept: dict[Kind, Mould] = {}

    def bridge(self, messages: Sequence[Message], *, ended: bool) -> list[int] | None:
        """Ids of what `Renderer.bridge` appends; None for what goes the long way.

        Raises RenderError if the template refuses such messages.
        """
        if not self._opaque or len(messages) > _MOST_MESSAGES:
            return None
        contents: list[str] = []
        kind: list[tuple[str, str, str]] = []
        for message in messages:
            content = sound(message.content or "")
            if message.tool_calls or not (self._controls.bare(content) and self._controls.bare(message.name)):
                return None
            if message.role == "user" and content.startswith(FOLDED):
                return None
            contents.append(content)
            kind.append((message.role, message.name, message.tool_call_id if self._ids_matter else ""))
        mould = self._mould((ended, *kind), messages)
        ids: list[int] = []
        for piece in mould:
            ids += self._tokens.literal(piece.filled(contents)) if isinstance(piece, Gap) else piece
        return ids

    def _mould(self, kind: Kind, messages: Sequence[Message]) -> Mould:
        mould = self._kept.get(kind)
        if mould is None:
            mould = self._made(messages, ended=kind[0] is True)
            if len(self._kept) < MOST:
                self._kept[kind] = mould
        return mould

    def _made(self, messages: Sequence[Message], *, ended: bool) -> Mould:
        """Render marks, and tokenise what lies around them."""
        marked = [replace(message, content=chr(_FIRST + at)) for at, message in enumerate(messages)]
        sheet = self._layout.after(marked)
        pieces: list[tuple[int, ...] | Gap] = []
        ids: list[int] = []
        text = sheet.text[len(self._lead) :] if ended else sheet.text
        for piece in self._tokens.split(text, self._controls.pattern, sheet.veil.reveal):
            if isinstance(piece, int):
                ids.append(piece)
            elif _MARK.search(piece.text) is None:
                ids += self._tokens.literal(piece)
            else:
                parts = [ord(part) - _FIRST if _MARK.match(part) else part for part in _MARK.split(piece.text) if part]
                pieces += [tuple(ids), Gap(tuple(parts), piece.left, piece.right)]
                ids = []
        return (*pieces, tuple(ids))
