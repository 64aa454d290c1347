"""Layout: chat messages as a template's text, whole or only what follows an assistant's turn.

A template speaks its own dialect: some know no system message, no tool messages, no calls or no tools, and some write
calls in a syntax that the parser does not read. What it does not know is folded into what it does: the system message
into the first user message, tool results into a user message of `<tool_response>` parts, calls into the assistant's
text, tools into the system message.

`after` is the bridge: a short chat whose assistant turn is the sentinel, cut behind the sentinel. What comes out are
the end of the turn, the new messages and the prompt of the next turn, with no system prompt in the middle.

The text of a `Sheet` is still veiled: control strings in it are the template's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.core.errors import RenderError
from treadle.core.messages import Message, ToolCall, ToolSpec, assistant, system, user
from treadle.rendering.hermes import described, schema, written
from treadle.rendering.parsing import Parser
from treadle.rendering.template import ChatTemplate
from treadle.rendering.veil import Controls, Veil, sound

Change = Callable[[str], str]
FOLDED = "<tool_response>"
"""How a tool result begins that is folded into a user message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a template knows by itself; the rest is folded."""

    system: bool
    """A system message at the beginning."""
    tool_role: bool
    """Messages of role `tool`."""
    calls: bool
    """Calls of an assistant message, in a syntax that the parser reads back."""
    tools: bool
    """A list of tools."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rendered text before the veil is lifted."""

    text: str
    veil: Veil

    @property
    def plain(self) -> str:
        """The text as a reader sees it."""
        return self.veil.reveal(self.text)


class Layout:
    """Renders messages to sheets in one dialect."""

    def __init__(self, template: ChatTemplate, controls: Controls, parser: Parser, dialect: Dialect) -> None:
        self.template = template
        self.dialect = dialect
        self._controls = controls
        self._parser = parser

    def whole(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generate: bool = True) -> Sheet:
        """The chat from its beginning. Raises RenderError if the template refuses it."""
        veil, messages, tools = self._veiled(messages, tools)
        return self._sheet(veil, messages, tools, generate)

    def after(self, messages: Sequence[Message]) -> Sheet:
        """What follows an assistant turn's text up to the prompt of the next turn. Raises RenderError."""
        veil, messages, _ = self._veiled(messages, ())
        sheet = self._sheet(veil, [system("s"), user("u"), assistant(veil.sentinel), *messages], (), True)
        _, *rest = sheet.text.split(veil.sentinel)
        if len(rest) != 1:
            raise RenderError(
                f"{self.template.folder}: the chat template writes an assistant turn {len(rest)} times, expected once"
            )
        return Sheet(rest[0], veil)

    def _veiled(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Veil, Sequence[Message], Sequence[ToolSpec]]:
        contents: list[str] = []

        def gather(text: str) -> str:
            if not text:
                return text
            contents.append(sound(text))
            return contents[-1]

        messages = [_changed(message, gather, gather) for message in messages]
        tools = [_changed_tool(tool, gather) for tool in tools]
        veil = self._controls.veil(contents)
        markers = self._parser.markers

        def said(text: str) -> str:
            return veil.hide(text, keep=markers)

        messages = [_changed(m, said if m.role == "assistant" else veil.hide, veil.hide) for m in messages]
        return veil, messages, [_changed_tool(tool, veil.hide) for tool in tools]

    def _sheet(self, veil: Veil, messages: Sequence[Message], tools: Sequence[ToolSpec], generate: bool) -> Sheet:
        if tools and not self.dialect.tools:
            messages, tools = self._told(messages, tools), ()
        plain = _folded(messages, self.dialect)
        text = self.template.render(
            [_entry(message) for message in plain],
            tools=[{"type": "function", "function": schema(tool)} for tool in tools],
            generate=generate,
        )
        return Sheet(text, veil)

    def _told(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[Message]:
        """The messages with the tools described in the system message."""
        probe = written(ToolCall(name="f", arguments={}))
        if not self._parser.parse(probe, truncated=False)[0].calls:
            raise RenderError(
                f"{type(self._parser).__name__} reads no tool calls, but {len(tools)} tools are offered: "
                "use HermesParser or an environment without tools"
            )
        text = described(tools)
        if messages and messages[0].role == "system":
            return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
        return [system(text), *messages]


def _changed(message: Message, content: Change, other: Change) -> Message:
    """The message with `content` applied to its content and `other` to every other text in it."""
    calls = tuple(
        replace(
            call,
            name=other(call.name),
            arguments=None if call.arguments is None else _walked(call.arguments, other),
            raw=other(call.raw),
            id=other(call.id),
        )
        for call in message.tool_calls
    )
    return Message(
        role=message.role,
        content=content(message.content or ""),
        tool_calls=calls,
        tool_call_id=other(message.tool_call_id),
        name=other(message.name),
    )


def _changed_tool(tool: ToolSpec, change: Change) -> ToolSpec:
    return replace(
        tool,
        name=change(tool.name),
        description=change(tool.description),
        parameters=_walked(tool.parameters, change),
    )


def _walked(value: Any, change: Change) -> Any:
    """A JSON value of plain types with `change` applied to every text in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _walked(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_walked(item, change) for item in value]
    return value


def _folded(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """The messages in the template's dialect."""
    folded: list[Message] = []
    for message in messages:
        last = folded[-1] if folded else None
        if message.tool_calls and not dialect.calls:
            text = "\n".join([message.content, *map(written, message.tool_calls)])
            message = assistant(text.removeprefix("\n"))
        if message.role == "tool" and not dialect.tool_role:
            text = f"{FOLDED}\n{message.content}\n</tool_response>"
            if last is not None and last.role == "user" and last.content.startswith(FOLDED):
                folded[-1] = user(f"{last.content}\n{text}")
                continue
            message = user(text)
        folded.append(message)
    return folded if dialect.system else _without_system(folded)


def _without_system(messages: list[Message]) -> list[Message]:
    """The messages with a leading system message put before the first user message's text."""
    if not messages or messages[0].role != "system":
        return messages
    prompt, rest = messages[0].content, messages[1:]
    if not rest or rest[0].role != "user":
        return [user(prompt), *rest]
    return [user(f"{prompt}\n\n{rest[0].content}"), *rest[1:]]


def _entry(message: Message) -> dict[str, Any]:
    """A message as chat templates expect it."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [_call_entry(call) for call in message.tool_calls]
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.name:
        entry["name"] = message.name
    return entry


def _call_entry(call: ToolCall) -> dict[str, Any]:
    if call.arguments is None:
        raise RenderError(f"call of {call.name!r} has no arguments that parsed: it cannot be rendered from a message")
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
