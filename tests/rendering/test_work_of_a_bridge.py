"""What a bridge tokenises: the new message, and nothing that an earlier bridge did."""

import re

import pytest

from treadle.core.messages import user
from treadle.rendering import PlainParser
from treadle.rendering.tokens import MOST_SHORT, Tokens


@pytest.fixture
def encoded(monkeypatch):
    """Every text that is tokenised from now on."""
    texts = []
    encode = Tokens.encode
    monkeypatch.setattr(Tokens, "encode", lambda self, text: texts.append(text) or encode(self, text))
    return texts


def test_a_second_bridge_tokenises_only_the_new_message(render, encoded):
    renderer = render("smollm2", PlainParser())
    renderer.bridge([user("the first observation")], ended=True)
    encoded.clear()
    renderer.bridge([user("the second observation")], ended=True)
    assert encoded == ["user\nthe second observation"]


def test_what_is_kept_of_short_texts_is_bounded(folder, encoded):
    tokens = Tokens.load(folder("smollm2"))
    nothing = re.compile(r"(?!)")  # no control strings
    for number in range(MOST_SHORT + 10):
        tokens.encode_written(str(number), nothing)
    encoded.clear()
    for number in (0, MOST_SHORT + 5):
        assert tokens.decode(tokens.encode_written(str(number), nothing)) == str(number)
    assert encoded == [str(MOST_SHORT + 5)]
