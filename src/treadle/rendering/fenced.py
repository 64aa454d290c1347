"""Fenced code blocks, read by CommonMark's rule: a fence is a line of at least three backticks, indented by at most
three spaces, with an info string that has no backtick; a line of at least as many backticks closes it. So a longer
fence may hold a shorter one, and backticks in the middle of a line open nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.core.actions import Action, CodeBlock
from treadle.rendering.parsing import THINK, THOUGHT, TextSpan, fill, thought_end

_OPEN = re.compile(r"(?P<think><think>)|^ {0,3}(?P<ticks>`{3,})(?P<info>[^`\n]*)(?:\n|\Z)", re.MULTILINE)
_CLOSE = re.compile(r"^ {0,3}(?P<ticks>`{3,})[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FencedParser:
    """Reads code blocks. A block's span covers its fences."""

    languages: tuple[str, ...] = ("bash", "sh", "python")
    """First words of info strings, lower case, that make a block of the action; "" stands for a fence without one.
    Blocks in other languages stay text. An empty tuple takes every block."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Thought tags only: fences are ordinary text."""
        return (THINK, THOUGHT)

    def parse(self, text: str, *, truncated: bool) -> tuple[Action, tuple[TextSpan, ...]]:
        """The blocks of the turn; one that the turn's end cut off has `closed` False."""
        parts: list[TextSpan] = []
        blocks: list[CodeBlock] = []
        at = 0
        while found := _OPEN.search(text, at):
            if found["think"]:
                at = thought_end(text, found.start())
                parts.append(TextSpan("thought", found.start(), at))
                continue
            block, at = _block(text, found)
            if not self.languages or block.language in self.languages:
                blocks.append(block)
                parts.append(TextSpan("code", found.start(), at))
        return Action(text=text, blocks=tuple(blocks), truncated=truncated), fill(parts, len(text))


def _block(text: str, opening: re.Match[str]) -> tuple[CodeBlock, int]:
    """The block that `opening` starts, and where it ends."""
    language = (opening["info"].split() or [""])[0].lower()
    start, width = opening.end(), len(opening["ticks"])
    for closing in _CLOSE.finditer(text, start):
        if len(closing["ticks"]) >= width:
            code = text[start : closing.start()].removesuffix("\n")
            return CodeBlock(language=language, code=code), closing.end()
    return CodeBlock(language=language, code=text[start:].removesuffix("\n"), closed=False), len(text)
