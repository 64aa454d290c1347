"""Where content holds no control string, transformers renders and encodes the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.core.messages import ToolCall, ToolSpec, assistant, system, tool_result, user
from treadle.rendering import HermesParser, Renderer

CALL = ToolCall(name="lookup", arguments={"key": "é", "most": 3}, id="c00000001")
CHAT = [system("Be brief."), user("How many lines?"), assistant("Wait."), user("  And now?\n")]
TOOL = ToolSpec(name="lookup", description="Finds a key.", parameters={"type": "object", "properties": {"key": {}}})
Theirs = Callable[[str], Any]


@pytest.fixture(scope="module")
def theirs(folder: Callable[[str], Path]) -> Theirs:
    transformers = pytest.importorskip("transformers")
    return lambda kind: transformers.AutoTokenizer.from_pretrained(folder(kind))


def plain(messages: list) -> list[dict[str, Any]]:
    return [{"role": message.role, "content": message.content} for message in messages]


@pytest.mark.parametrize("kind", ["smollm2", "qwen-like", "llama-like", "thinks first"])
def test_a_chat_has_the_same_ids(render: Callable[..., Renderer], theirs: Theirs, kind: str):
    expected = theirs(kind).apply_chat_template(plain(CHAT), add_generation_prompt=True)["input_ids"]
    assert list(render(kind, HermesParser()).first(CHAT)) == expected


def test_tools_calls_and_results_have_the_same_ids(render: Callable[..., Renderer], theirs: Theirs):
    chat = [*CHAT[:2], assistant("", (CALL,)), tool_result(CALL, "42")]
    messages = plain(chat)
    function = {"name": CALL.name, "arguments": dict(CALL.arguments or {})}
    messages[2]["tool_calls"] = [{"type": "function", "id": CALL.id, "function": function}]
    parameters = {"name": TOOL.name, "description": TOOL.description, "parameters": dict(TOOL.parameters)}
    expected = theirs("qwen-like").apply_chat_template(
        messages, tools=[{"type": "function", "function": parameters}], add_generation_prompt=True
    )["input_ids"]
    assert list(render("qwen-like", HermesParser()).first(chat, (TOOL,))) == expected
