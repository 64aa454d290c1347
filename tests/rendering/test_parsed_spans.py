"""From completions to actions: which tokens form which part."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.rendering import FencedParser, HermesParser, PlainParser, Renderer
from treadle.trajectory.segment import Span

Render = Callable[..., Renderer]
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "%s"}}\n</tool_call>'
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def parts(renderer: Renderer, ids) -> list[tuple[str, str]]:
    spans = renderer.parse(ids).spans
    return [(span.kind, renderer.decode(ids[span.start : span.end])) for span in spans]


def test_the_end_token_is_no_part_of_the_text(render: Render):
    renderer = render("smollm2", FencedParser())
    parsed = renderer.parse(renderer.demonstration("hello"))
    assert parsed.action.text == "hello"
    assert parsed.spans == (Span("text", 0, len(renderer.encode("hello"))),)


def test_a_code_span_covers_exactly_the_block(render: Render):
    renderer = render("smollm2", FencedParser())
    ids = [*renderer.encode("Look: "), *renderer.encode("\n")]
    block, rest = renderer.encode("```bash\nls é😀\n```"), renderer.encode("\nDone.")
    assert parts(renderer, [*ids, *block, *rest]) == [
        ("text", "Look: \n"),
        ("code", "```bash\nls é😀\n```"),
        ("text", "\nDone."),
    ]


def test_calls_and_thoughts_have_their_tokens(render: Render):
    renderer = render("qwen-like", HermesParser())
    said = "<think>\nhm 你好\n</think>" + CALL % "😀" + "\n" + CALL % "y"
    found = parts(renderer, renderer.demonstration(said))
    assert found == [
        ("thought", "<think>\nhm 你好\n</think>"),
        ("call", CALL % "😀"),
        ("text", "\n"),
        ("call", CALL % "y"),
    ]


def test_a_token_that_straddles_an_edge_belongs_to_the_marked_part(model_folder):
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    renderer = Renderer.load(model_folder(template), parser=FencedParser())
    ids = renderer.encode("x\n```bash\nls\n```\nbye")
    spans = renderer.parse(ids).spans
    code = next(span for span in spans if span.kind == "code")
    assert "```bash\nls\n```" in renderer.decode(ids[code.start : code.end])
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]


def test_ids_of_calls_differ_between_turns(render: Render):
    renderer = render("qwen-like", HermesParser())
    ids = renderer.demonstration(CALL % "x")
    first, second = (renderer.parse(ids, turn=turn).action.calls[0].id for turn in (0, 1))
    assert first != second


def test_truncation_reaches_the_action(render: Render):
    renderer = render("smollm2", FencedParser())
    parsed = renderer.parse(renderer.encode("```bash\nls"), truncated=True)
    assert parsed.action.truncated and not parsed.action.blocks[0].closed


def test_a_turn_that_begins_inside_a_thought_runs_nothing_before_its_end(render: Render):
    renderer = render("thinks first", HermesParser())
    parsed = renderer.parse(renderer.demonstration(CALL % "danger" + "</think>" + CALL % "safe"))
    assert [call.arguments for call in parsed.action.calls] == [{"x": "safe"}]
    assert [span.kind for span in parsed.spans] == ["thought", "call"]


def test_a_thought_that_the_prompt_opened_and_nothing_closed_is_all_there_is(render: Render):
    renderer = render("thinks first", HermesParser())
    parsed = renderer.parse(renderer.encode(CALL % "x"), truncated=True)
    assert parsed.action.calls == () and [span.kind for span in parsed.spans] == ["thought"]


def test_an_empty_completion_is_an_empty_action(render: Render):
    renderer = render("smollm2", PlainParser())
    parsed = renderer.parse([renderer.stop_ids[0]])
    assert (parsed.action.text, parsed.spans) == ("", ())


@pytest.mark.parametrize("parser", [FencedParser(), HermesParser(), PlainParser()], ids=repr)
@given(ids=st.lists(st.integers(0, 520), max_size=60))
@relaxed
def test_any_ids_parse_into_spans_that_cover_them(render: Render, parser, ids):
    renderer = render("qwen-like", parser)
    parsed = renderer.parse(ids)
    said = ids[:-1] if ids and ids[-1] in renderer.stop_ids else ids
    assert parsed.action.text == renderer.decode(said)
    edges = [0, *(edge for span in parsed.spans for edge in (span.start, span.end)), len(said)]
    assert edges == sorted(edges) and edges[1::2] == edges[::2]


@given(
    pieces=st.lists(
        st.sampled_from(["```bash\nls\n```", "\n", "é", "你😀", "text ", "<think>", "</think>", "```\n"]), max_size=8
    )
)
@relaxed
def test_every_block_has_a_span_of_the_tokens_that_wrote_it(render: Render, pieces):
    renderer = render("smollm2", FencedParser())
    ids = renderer.encode("".join(pieces))
    parsed = renderer.parse(ids)
    written = [renderer.decode(ids[s.start : s.end]) for s in parsed.spans if s.kind == "code"]
    assert len(written) == len(parsed.action.blocks)
    assert all(block.code in text for block, text in zip(parsed.action.blocks, written, strict=True))
