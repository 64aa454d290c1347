"""Messages, calls and actions are frozen records that lose nothing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.messages import Message, ToolCall, assistant, system, tool_result, user


def test_the_short_forms_set_the_role() -> None:
    assert [m.role for m in (system("a"), user("b"), assistant("c"))] == ["system", "user", "assistant"]


def test_a_result_points_at_its_call() -> None:
    call = ToolCall(name="guess", arguments={"x": 1}, id="c1")
    assert tool_result(call, "higher") == Message(role="tool", content="higher", tool_call_id="c1", name="guess")


def test_a_call_that_did_not_parse_keeps_its_text() -> None:
    call = ToolCall(name="guess", arguments=None, raw='{"x": ')
    assert call.arguments is None
    assert assistant("", (call,)).tool_calls[0].raw == '{"x": '


def test_content_is_never_none() -> None:
    assert Message(role="assistant").content == ""


def test_an_action_is_plain_text_until_parts_are_found() -> None:
    action = Action(text="hi")
    assert (action.calls, action.blocks, action.queries, action.truncated) == ((), (), (), False)
    assert Action(text="x", blocks=(CodeBlock(language="bash", code="ls"),)).blocks[0].closed


@pytest.mark.parametrize(
    ("record", "name"), [(user("a"), "content"), (Action(text="a"), "text"), (ToolCall(name="a", arguments={}), "raw")]
)
def test_records_cannot_be_changed(record: object, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, "b")
