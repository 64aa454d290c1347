"""What a player needs of a renderer. `treadle.rendering.Renderer` is one; tests bring a smaller one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.core.messages import Message, ToolSpec
from treadle.core.ports import Ids

if TYPE_CHECKING:  # a renderer needs tokenizers, which must not be loaded to look at a player
    from treadle.rendering.renderer import Parsed


class Rendering(Protocol):
    """Messages to ids, incrementally, and ids to actions.

    Raises
    ------
    RenderError     a message that the template refuses
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        ...

    def first(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Ids:
        """Ids of a chat's beginning with the prompt of an assistant turn."""
        ...

    def bridge(self, new_messages: Sequence[Message], *, ended: bool) -> Ids:
        """Ids to append after a completion; `ended` says that its end token was sampled."""
        ...

    def demonstration(self, text: str) -> Ids:
        """Ids of an assistant turn as the policy would have sampled it."""
        ...

    def parse(self, ids: Ids, *, truncated: bool = False, turn: int = 0) -> Parsed:
        """The action in a completion."""
        ...

    def ended(self, ids: Ids) -> bool:
        """Whether a completion ends with the template's end token."""
        ...
