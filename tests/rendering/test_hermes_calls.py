"""JSON tool calls, well and badly written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.core.messages import ToolCall
from treadle.rendering import HermesParser
from treadle.rendering.hermes import written

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=3)


def calls(text: str) -> list[tuple[str, object]]:
    return [(call.name, call.arguments) for call in HermesParser().parse(text, truncated=False)[0].calls]


def test_a_call_is_found_with_its_span():
    text = 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\nok'
    action, spans = HermesParser().parse(text, truncated=False)
    assert calls(text) == [("f", {"x": 1})]
    assert action.calls[0].raw == '{"name": "f", "arguments": {"x": 1}}'
    assert [text[s.start : s.end] for s in spans if s.kind == "call"] == [text[12:-3]]


def test_parallel_calls_keep_their_order_and_have_ids_of_their_own():
    one = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    found = HermesParser().parse((one % "a") + "\n" + (one % "b"), truncated=False)[0].calls
    assert [call.name for call in found] == ["a", "b"] and found[0].id != found[1].id


def test_a_call_without_arguments_has_none_to_give():
    assert calls('<tool_call>{"name": "f"}</tool_call>') == [("f", {})]


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"x": 1}',
        '{"name": "f", "arguments": {x: 1}}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {}} extra',
        '{"name": "f", "arguments": {}} {"name": "g"}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": {"x": ' + "[" * 100_000,
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
    ],
)
def test_a_call_that_cannot_be_read_is_kept_without_arguments(body):
    call = HermesParser().parse(f"<tool_call>\n{body}\n</tool_call>", truncated=False)[0].calls[0]
    assert (call.name, call.arguments, call.raw) == ("f", None, body)


@pytest.mark.parametrize("body", ["", "f(x)", "[1]", '{"arguments": {}}', '{"name": 3, "arguments": {}}', '"name"'])
def test_a_call_without_a_name_is_kept_too(body):
    assert calls(f"<tool_call>{body}</tool_call>") == [("", None)]


def test_a_bad_call_does_not_take_the_next_one_with_it():
    assert calls('<tool_call>{oops\n<tool_call>{"name": "g", "arguments": {}}</tool_call>') == [("", None), ("g", {})]


def test_a_tag_inside_an_argument_does_not_end_the_call():
    assert calls('<tool_call>{"name": "f", "arguments": {"x": "</tool_call><tool_call>"}}</tool_call>') == [
        ("f", {"x": "</tool_call><tool_call>"})
    ]


def test_a_complete_call_needs_no_closing_tag_at_the_end_of_the_turn():
    assert calls('<tool_call>\n{"name": "f", "arguments": {}}\n') == [("f", {})]


def test_a_call_that_was_cut_off_has_no_arguments():
    assert calls('<tool_call>\n{"name": "f", "arguments": {"x": "lo') == [("f", None)]


def test_a_call_inside_a_thought_is_never_executed():
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    text = "<think>maybe " + call % "danger" + " no</think>" + call % "safe"
    assert calls(text) == [("safe", {})]


def test_a_call_after_a_thought_that_is_left_open_is_never_executed():
    assert calls('<think>I could <tool_call>{"name": "f", "arguments": {}}</tool_call>') == []


def test_a_thought_tag_inside_an_argument_opens_no_thought():
    call = '<tool_call>{"name": "f", "arguments": {"x": "%s"}}</tool_call>'
    assert [name for name, _ in calls(call % "<think>" + call % "y")] == ["f", "f"]


@given(name=st.text(min_size=1, max_size=8), given_=arguments)
@settings(max_examples=100, deadline=None)
def test_a_call_that_was_written_reads_back(name, given_):
    assert calls("So: " + written(ToolCall(name=name, arguments=given_))) == [(name, given_)]


@given(text=st.text(max_size=30), cut=st.integers(0, 80))
@settings(max_examples=100, deadline=None)
def test_no_text_makes_the_parser_raise(text, cut):
    whole = "<tool_call>" + json.dumps({"name": text, "arguments": {text: text}}) + "</tool_call>" + text
    action, _ = HermesParser().parse(whole[:cut] + text, truncated=True)
    assert action.truncated
