"""An action is what one assistant turn asks the world to do: plain text, function calls, code blocks, queries.

Actions hold no token positions: those stand beside them in `rendering.Parsed`, so that an environment can be
written and tested without a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.core.messages import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One fenced code block of an assistant turn."""

    language: str
    """Lower-case info string of the fence, such as `bash`; empty when the fence had none."""
    code: str
    """The text between the fences, without the last newline."""
    closed: bool = True
    """False when the turn ended before the closing fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One assistant turn as the environment sees it."""

    text: str
    """The whole turn as text, including calls and blocks."""
    calls: tuple[ToolCall, ...] = ()
    blocks: tuple[CodeBlock, ...] = ()
    queries: tuple[str, ...] = ()
    """Search queries, for environments that take them."""
    truncated: bool = False
    """True when the turn hit its token limit before it ended by itself."""
