"""What the world answers to one action.

`Step.messages` is what the model reads next; `Step.reward` is paid for the action that the step answers. `outcome` is
set only by the host or the tool dispatch, when the rollout cannot go on: a failure, a limit, a tool that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.core.messages import Message, ToolCall
from treadle.core.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one tool call gave."""

    call: ToolCall | None
    """The call it answers; None when the action was no function call (a code block, a move of a game)."""
    content: str
    """The text that the model sees."""
    error: bool = False
    """True when the model was told that the call failed."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The world's answer to one action."""

    messages: tuple[Message, ...] = ()
    """What the model reads next; may be empty when the step ends the rollout."""
    reward: float = 0.0
    """Paid for the action that this step answers."""
    terminated: bool = False
    """The environment says it is over."""
    truncated: bool = False
    """A limit of the environment or the host ended it."""
    results: tuple[ToolResult, ...] = ()
    outcome: Outcome | None = None
    """Set when the rollout must end here for another reason than `terminated`."""
    state_key: str | None = None
    """Equal keys mean equal world states; None when the environment cannot tell."""

    @property
    def done(self) -> bool:
        """True when no further action may follow."""
        return self.terminated or self.truncated or self.outcome is not None
