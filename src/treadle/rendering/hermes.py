"""JSON tool calls in the style of Hermes and Qwen: `<tool_call>` {"name": ..., "arguments": {...}} `</tool_call>`.

The JSON is read by a JSON decoder first and the closing tag looked for behind it, so a tag inside an argument does
not end the call. A call that cannot be read is kept, with `arguments` None, because the model must be told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from treadle.core.actions import Action
from treadle.core.messages import ToolCall, ToolSpec
from treadle.rendering.parsing import THINK, THOUGHT, TextSpan, fill, thought_end

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_START = re.compile(f"{THINK}|{OPEN}")
_BEHIND = re.compile(rf"\s*(?:{CLOSE}|(?={OPEN})|\Z)")
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class HermesParser:
    """Reads tool calls, any number in a turn. A call's span covers its tags; its id is its place in the turn."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Thought tags and call tags."""
        return (THINK, THOUGHT, OPEN, CLOSE)

    def parse(self, text: str, *, truncated: bool) -> tuple[Action, tuple[TextSpan, ...]]:
        """The calls of the turn, in order."""
        parts: list[TextSpan] = []
        calls: list[ToolCall] = []
        at = 0
        while found := _START.search(text, at):
            if found[0] == THINK:
                at = thought_end(text, found.start())
                parts.append(TextSpan("thought", found.start(), at))
                continue
            call, at = _call(text, found.end(), f"c{len(calls):03d}")
            calls.append(call)
            parts.append(TextSpan("call", found.start(), at))
        return Action(text=text, calls=tuple(calls), truncated=truncated), fill(parts, len(text))


def _call(text: str, start: int, id_: str) -> tuple[ToolCall, int]:
    """The call whose inside begins at `start`, and where it ends, closing tag included."""
    body = _SPACE.match(text, start)
    assert body is not None
    try:
        value, end = _DECODER.raw_decode(text, body.end())
    except (ValueError, RecursionError):
        return _unreadable(text, start, id_)
    behind = _BEHIND.match(text, end)
    if behind is None or not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _unreadable(text, start, id_)
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        arguments = None
    raw = text[body.end() : end]
    return ToolCall(name=value["name"], arguments=arguments, raw=raw, id=id_), behind.end()


def _unreadable(text: str, start: int, id_: str) -> tuple[ToolCall, int]:
    """A call without arguments: its text up to the next tag, and its name if one can be made out."""
    close, after = text.find(CLOSE, start), text.find(OPEN, start)
    ends = [at for at in (close, after, len(text)) if at >= 0]
    end = min(ends)
    raw = text[start:end].strip()
    name = _NAME.search(raw)
    call = ToolCall(name=name[1] if name else "", arguments=None, raw=raw, id=id_)
    return call, end + len(CLOSE) if end == close else end


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def written(call: ToolCall) -> str:
    """A call as a turn's text."""
    if call.arguments is None:
        return f"{OPEN}\n{call.raw}\n{CLOSE}"
    return f"{OPEN}\n{_json({'name': call.name, 'arguments': call.arguments})}\n{CLOSE}"


def described(tools: Sequence[ToolSpec]) -> str:
    """Tools as a text for the system message, for templates that have no place for them."""
    lines = [_json({"type": "function", "function": schema(tool)}) for tool in tools]
    return _DESCRIPTION.format(tools="\n".join(lines), open=OPEN, close=CLOSE)


def schema(tool: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


_DESCRIPTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with the function's name and arguments within {open}{close} tags:
{open}
{{"name": <function-name>, "arguments": <arguments-as-a-JSON-object>}}
{close}"""
