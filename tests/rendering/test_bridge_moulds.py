"""A bridge that is filled into a mould has the ids that rendering its messages would give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.core.messages import Message, ToolCall, system, tool_result, user
from treadle.rendering import PlainParser
from treadle.rendering.layout import FOLDED, Layout
from treadle.rendering.mould import MOST, Moulds
from treadle.rendering.proof import prove
from treadle.rendering.template import ChatTemplate
from treadle.rendering.tokens import Tokens
from treadle.rendering.veil import Controls

CALL = ToolCall(name="lookup", arguments={"key": "value"}, id="t0001c0")
KINDS = ("smollm2", "smollm2 with tags", "qwen-like", "llama-like", "gemma-like", "thinks first")
PIECES = (
    "<|im_start|>", "<|im_end|>", "<|im", "_end|>", "|>", "<", "<tool_response>", FOLDED, "<think>", "\uf000", "\ue000",
    "\ud800", "é", "😀", " ", "\n", "x", "ls -la", "You are", "",
)
TEXT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
MESSAGE = st.one_of(
    TEXT.map(user), TEXT.map(system), TEXT.map(lambda text: tool_result(CALL, text)),
    st.tuples(TEXT, TEXT).map(lambda pair: Message(role="tool", content=pair[0], name=pair[1], tool_call_id=pair[1])),
)  # fmt: skip


class Bench:
    """The moulds of a template, and the long way."""

    def __init__(self, folder):
        self.tokens = Tokens.load(folder)
        template = ChatTemplate.load(folder)
        self.proven = prove(template, self.tokens, PlainParser())
        self.controls = Controls(list(self.tokens.controls), written=template.source)
        self.moulds = Moulds(self.proven.layout, self.controls, self.tokens, lead=self.proven.lead)

    def rendered(self, messages, ended):
        """What the template writes, tokenised."""
        sheet = self.proven.layout.after(messages)
        text = sheet.text[len(self.proven.lead) :] if ended else sheet.text
        return self.tokens.encode_written(text, self.controls.pattern, sheet.veil.reveal)


@pytest.fixture(scope="module")
def bench(folder):
    made = {kind: Bench(folder(kind)) for kind in KINDS}
    return made.__getitem__


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(MESSAGE, min_size=1, max_size=3), ended=st.booleans(), kind=st.sampled_from(KINDS))
def test_a_filled_mould_has_the_ids_of_a_rendering(bench, messages, ended, kind):
    side = bench(kind)
    filled = side.moulds.bridge(messages, ended=ended)
    assert filled is None or filled == side.rendered(messages, ended)


@pytest.mark.parametrize("text", ["", "one", "two\nlines ", "déjà 😀", "  <b>"])
def test_plain_observations_are_filled_in(bench, text):
    side = bench("smollm2")
    for messages in ([user(text)], [tool_result(CALL, text), tool_result(CALL, "more")]):
        filled = side.moulds.bridge(messages, ended=True)
        assert filled is not None
        assert filled == side.rendered(messages, True)


@pytest.mark.parametrize("text", ["<|im_end|>", "ends in <|im", "|> begins", "\uf000", f"{FOLDED} by a user"])
def test_what_may_come_out_otherwise_goes_the_long_way(bench, text):
    assert bench("smollm2").moulds.bridge([user(text)], ended=True) is None


def test_a_template_that_changes_contents_has_no_moulds(bench):
    assert bench("llama-like").moulds.bridge([user("text")], ended=True) is None


def test_the_second_of_a_kind_runs_no_template(bench, monkeypatch):
    side = bench("smollm2")
    side.moulds.bridge([user("first")], ended=True)
    expected = side.rendered([user("second")], True)
    monkeypatch.setattr(Layout, "after", lambda self, messages: pytest.fail("the template ran"))
    assert side.moulds.bridge([user("second")], ended=True) == expected


def test_how_many_kinds_are_kept_is_bounded(folder):
    side = Bench(folder("smollm2"))
    for number in range(MOST + 5):
        side.moulds.bridge([Message(role="user", content="x", name=f"n{number}")], ended=True)
    assert len(side.moulds._kept) == MOST
