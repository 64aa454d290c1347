"""Chat messages and tools, as text: what environments and agents exchange. No token ids here.

A `ToolCall` keeps `raw`, the text that the model wrote, next to `arguments`, which is None when that text
did not parse: a bad call is answered to the model, so it must survive as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One function call that the model asked for."""

    name: str
    """Name of the tool as the model wrote it; may be unknown to the environment."""
    arguments: Mapping[str, Any] | None
    """Parsed JSON object; None when `raw` did not parse as one."""
    raw: str = ""
    """The text of the call as sampled."""
    id: str = ""
    """Unique within a rollout; pairs a tool message with its call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the model is told about one tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant message; empty for every other role."""
    tool_call_id: str = ""
    """For role `tool`: the id of the call that this message answers."""
    name: str = ""
    """For role `tool`: the tool's name."""


def system(content: str) -> Message:
    """A system message."""
    return Message(role="system", content=content)


def user(content: str) -> Message:
    """A user message."""
    return Message(role="user", content=content)


def assistant(content: str, tool_calls: tuple[ToolCall, ...] = ()) -> Message:
    """An assistant message."""
    return Message(role="assistant", content=content, tool_calls=tool_calls)


def tool_result(call: ToolCall, content: str) -> Message:
    """The answer to `call`."""
    return Message(role="tool", content=content, tool_call_id=call.id, name=call.name)
