"""Which templates only write what messages say: told from their source, and where in doubt, not."""

from pathlib import Path

import pytest

from treadle.rendering.template import ChatTemplate

LOOP = "{% for m in messages %}<s>{{ BODY }}</s>{% endfor %}"


def opaque(source):
    return ChatTemplate(source, {}, folder=Path("a folder")).reads.opaque


@pytest.mark.parametrize("body", [
    "m.content", "m['content']", "m.role + m.content + '\\n'", "'a' ~ m.content ~ loop.index", "messages[0].content",
    "messages[loop.index0 - 1].content", "messages[1:][0]['content']", "messages | length",
])  # fmt: skip
def test_writing_a_content_keeps_it_opaque(body):
    assert opaque(LOOP.replace("BODY", body))


@pytest.mark.parametrize("body", [
    "m.content | trim", "m.content.strip()", "m.content[0]", "m.content if m.content else 'x'",
    "(m.content ~ 'x') | upper", "m | tojson", "m", "messages", "m.items() | list", "m['values']()",
    "m.get('content')", "m[key]",
    "loop.previtem.content", "loop.nextitem", "'%s' % m.content", "m.content * 2",
    "messages | map(attribute='content')", "messages[0] | string", "[m.content] | join", "m.content == 'x'", "dict(m)",
    "cycler(m).next()",
    "'a' if 'x' in m.content else 'b'", "loop.changed(m.content)", "(messages | last).content",
])  # fmt: skip
def test_anything_else_done_with_one_does_not(body):
    assert not opaque(LOOP.replace("BODY", body))


@pytest.mark.parametrize("source", [
    "{% for m in messages %}{% set c = m.content %}{{ c }}{% endfor %}",
    "{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for m in messages if m.content %}{{ m.content }}{% endfor %}",
    "{% set x %}{{ messages[0].content }}{% endset %}{{ x | upper }}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "{% macro f(m) %}{{ m.content }}{% endmacro %}{{ f(messages[0]) }}",
    "{% macro f() %}{{ messages[0].content }}{% endmacro %}{{ f() | upper }}",
    "{% set ns = namespace(m=messages) %}{{ ns.m[0].content | trim }}",
    "{% set ns = namespace() %}{% set ns.m = messages[0] %}{{ ns.m.content | trim }}",
    "{% set a, b = messages %}{{ a.content | trim }}",
    "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ v | upper }}{% endfor %}",
    "{% set rest = messages[1:] %}{% for m in rest %}{{ m.content | upper }}{% endfor %}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
])  # fmt: skip
def test_nor_does_passing_it_on(source):
    assert not opaque(source)


def test_a_message_may_have_another_name():
    assert opaque("{% set rest = messages[1:] %}{% for m in rest %}{{ m.content }}{% endfor %}")


def test_the_fields_that_a_template_mentions_are_known():
    source = "{% for m in messages %}{{ m.role }}{{ m['tool_call_id'] }}{% endfor %}"
    assert ChatTemplate(source, {}, folder=Path("a folder")).reads.names == {"role", "tool_call_id"}
