"""A renderer without a tokenizer: one id per byte, one id per role, one end id. For tests of players and loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.core.actions import Action
from treadle.core.messages import Message, ToolSpec
from treadle.core.ports import Ids
from treadle.rendering.renderer import Parsed
from treadle.trajectory.segment import Span

END = 256
"""Ends a message; the only stop id."""
ROLES = {"user": 257, "assistant": 258, "system": 259, "tool": 260}


class ByteRenderer:
    """Satisfies `agents.ports.Rendering`. The action of a turn is its text."""

    stop_ids: tuple[int, ...] = (END,)

    def first(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Ids:
        """Every message, then the mark of an assistant turn."""
        return _array([*self._written(messages), ROLES["assistant"]])

    def bridge(self, new_messages: Sequence[Message], *, ended: bool) -> Ids:
        """The end id unless it was sampled, the messages, the mark of an assistant turn."""
        return _array([*([] if ended else [END]), *self._written(new_messages), ROLES["assistant"]])

    def demonstration(self, text: str) -> Ids:
        """The text and the end id."""
        return _array([*text.encode(), END])

    def parse(self, ids: Ids, *, truncated: bool = False, turn: int = 0) -> Parsed:
        """The text as one action."""
        text = self.decode(ids)
        count = len(ids) - int(self.ended(ids))
        spans = (Span("text", 0, count),) if count else ()
        return Parsed(action=Action(text=text, truncated=truncated), spans=spans)

    def ended(self, ids: Ids) -> bool:
        """Whether the last id is the end id."""
        return len(ids) > 0 and int(ids[-1]) == END

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of the bytes; marks are left out."""
        said = np.asarray(ids, np.int32)
        return said[said < END].astype(np.uint8).tobytes().decode(errors="replace")

    @staticmethod
    def _written(messages: Sequence[Message]) -> list[int]:
        return [i for m in messages for i in (ROLES[m.role], *m.content.encode(), END)]


def _array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)
