"""Plain text: the turn itself is the action, as in games that read a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.core.actions import Action
from treadle.rendering.parsing import THINK, THOUGHT, TextSpan, fill, thought_end


@dataclass(frozen=True, slots=True)
class PlainParser:
    """Reads no blocks and no calls; marks thoughts."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Thought tags only."""
        return (THINK, THOUGHT)

    def parse(self, text: str, *, truncated: bool) -> tuple[Action, tuple[TextSpan, ...]]:
        """The whole text as an action."""
        parts: list[TextSpan] = []
        at = text.find(THINK)
        while at >= 0:
            end = thought_end(text, at)
            parts.append(TextSpan("thought", at, end))
            at = text.find(THINK, end)
        return Action(text=text, truncated=truncated), fill(parts, len(text))
