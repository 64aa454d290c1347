"""Fenced code blocks and where they lie."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.core.actions import CodeBlock
from treadle.rendering import FencedParser, HermesParser, PlainParser, TextSpan

FRAGMENTS = (
    *("```", "````", "```bash\n", "```bash", "\n", "   ```\n", "    ```\n", "ls", " ", "`", "\r\n", "~~~\n", "é"),
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f"}',
        '{"name": "f", "arguments": {}}',
        "{",
        '"',
    ),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


def blocks(text: str, *languages: str) -> list[tuple[str, str, bool]]:
    action, _ = FencedParser(languages=languages or ("bash",)).parse(text, truncated=False)
    return [(block.language, block.code, block.closed) for block in action.blocks]


def test_a_block_is_found_with_its_span():
    text = "Let me look.\n```bash\nls -l\n```\nDone."
    action, spans = FencedParser().parse(text, truncated=False)
    assert action.blocks == (CodeBlock(language="bash", code="ls -l"),)
    assert [text[s.start : s.end] for s in spans if s.kind == "code"] == ["```bash\nls -l\n```"]


def test_several_blocks_keep_their_order():
    assert [code for _, code, _ in blocks("```bash\na\n```\n```bash\nb\n```")] == ["a", "b"]


def test_a_block_that_the_turn_ended_in_is_not_closed():
    assert blocks("```bash\nls -l\nca") == [("bash", "ls -l\nca", False)]


def test_a_block_of_which_only_the_fence_was_written_is_empty():
    assert blocks("```bash") == [("bash", "", False)]


def test_a_longer_fence_holds_a_shorter_one():
    assert blocks("````bash\ncat <<E\n```\nx\n```\nE\n````") == [("bash", "cat <<E\n```\nx\n```\nE", True)]


def test_a_shorter_fence_does_not_close_a_longer_one():
    assert blocks("````bash\nls\n```") == [("bash", "ls\n```", False)]


def test_a_longer_fence_closes_a_shorter_one():
    assert blocks("```bash\nls\n`````\nrest") == [("bash", "ls", True)]


def test_a_fence_with_an_info_string_does_not_close():
    assert blocks("```bash\nls\n```text\nx\n```") == [("bash", "ls\n```text\nx", True)]


@pytest.mark.parametrize("text", ["run ```bash\nls\n```", "```bash ls```", "    ```bash\nls", "``bash\nls\n``"])
def test_backticks_that_are_no_fence_open_nothing(text):
    assert blocks(text) == []


def test_a_fence_may_be_indented_by_three_spaces():
    assert blocks("   ```bash\nls\n  ```  ") == [("bash", "ls", True)]


def test_the_language_is_the_first_word_in_lower_case():
    assert blocks("``` Bash title=x\nls\n```") == [("bash", "ls", True)]


def test_blocks_in_other_languages_are_text_and_hide_what_is_in_them():
    text = "````text\n```bash\nrm -r .\n```\n````\n```bash\nls\n```"
    assert blocks(text) == [("bash", "ls", True)]


def test_the_empty_language_stands_for_a_fence_without_info_string():
    assert blocks("```\nls\n```", "") == [("", "ls", True)]


def test_an_empty_tuple_of_languages_takes_every_block():
    action, _ = FencedParser(languages=()).parse("```\na\n```\n```rust\nb\n```", truncated=False)
    assert [block.language for block in action.blocks] == ["", "rust"]


def test_windows_line_ends_close_a_block():
    assert blocks("```bash\r\nls\r\n```\r\n") == [("bash", "ls\r", True)]


def test_a_block_in_a_thought_is_not_run():
    text = "<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```"
    assert blocks(text) == [("bash", "ls", True)]


def test_nothing_is_run_after_a_thought_that_is_left_open():
    assert blocks("<think>hm\n```bash\nls\n```") == []


def test_a_thought_tag_in_a_block_is_code():
    assert blocks("```bash\necho '<think>'\n```\n```bash\nls\n```") == [
        ("bash", "echo '<think>'", True),
        ("bash", "ls", True),
    ]


def test_thoughts_nest():
    assert blocks("<think>a<think>b</think>\n```bash\nls\n```\n</think>") == []


def test_a_thought_may_mention_its_own_tag():
    assert blocks("<think>I am in a <think> block</think>\n```bash\nls\n```") == [("bash", "ls", True)]


def test_truncation_is_passed_on():
    action, _ = FencedParser().parse("x", truncated=True)
    assert action.truncated


def test_the_plain_parser_marks_thoughts_and_nothing_else():
    action, spans = PlainParser().parse("<think>a</think>```bash\nls\n```<think>b", truncated=False)
    assert action.blocks == () and action.text.endswith("<think>b")
    assert spans == (TextSpan("thought", 0, 16), TextSpan("text", 16, 30), TextSpan("thought", 30, 38))


@pytest.mark.parametrize(
    "parser", [FencedParser(), FencedParser(languages=()), HermesParser(), PlainParser()], ids=repr
)
@given(text=texts)
@settings(max_examples=150, deadline=None)
def test_the_spans_of_a_turn_cover_it_without_overlap(parser, text):
    action, spans = parser.parse(text, truncated=False)
    edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
    assert edges == sorted(edges) and edges[1::2] == edges[::2]
    assert all(span.end > span.start for span in spans)
    assert [s.kind for s in spans].count("code") == len(action.blocks)
    assert [s.kind for s in spans].count("call") == len(action.calls)
