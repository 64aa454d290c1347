"""What loading proves about a template, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.core.errors import RenderError
from treadle.core.messages import ToolCall, ToolSpec, assistant, system, user
from treadle.rendering import Dialect, FencedParser, HermesParser, PlainParser, Renderer

Render = Callable[..., Renderer]
TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
LOOKUP = ToolSpec(name="lookup", description="Finds a key.", parameters={"type": "object", "properties": {}})


def chat(body: str, *, before: str = "", after: str = PROMPT) -> str:
    return f"{before}{{% for m in messages %}}{body}{{% endfor %}}{after}"


def refused(folder: Path) -> str:
    with pytest.raises(RenderError) as caught:
        Renderer.load(folder, parser=HermesParser())
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_model_without_chat_template_is_refused_by_name(model_folder):
    assert "no chat template" in refused(model_folder(None))


def test_a_model_without_fast_tokenizer_is_refused(model_folder):
    folder = model_folder(chat(TURN))
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refused(folder)


def test_a_broken_tokenizer_file_is_refused(model_folder):
    folder = model_folder(chat(TURN))
    (folder / "tokenizer.json").write_text("{}")
    assert "cannot be read" in refused(folder)


def test_a_template_that_does_not_compile_is_refused(model_folder):
    assert "does not compile" in refused(model_folder("{% for %}"))


def test_a_template_without_end_token_is_refused(model_folder):
    assert "one end token" in refused(model_folder(chat("{{ m.role + ': ' + m.content + '\n' }}")))


def test_a_template_that_ends_turns_by_what_follows_is_refused(model_folder):
    body = "{{ '<|im_start|>' + m.role + '\n' + m.content + ('<|im_end|>' if loop.last else '<|endoftext|>') }}"
    assert "cannot be proven" in refused(model_folder(chat(body + "{{ '!' if loop.index > 4 }}")))


def test_a_template_that_numbers_its_messages_is_refused(model_folder):
    message = refused(
        model_folder(chat("{{ '<|im_start|>' ~ loop.index ~ m.role + '\n' + m.content + '<|im_end|>' }}"))
    )
    assert "cannot be proven for the case 'plain'" in message


def test_a_template_that_repeats_the_system_prompt_at_the_end_is_refused(model_folder):
    assert "cannot be proven" in refused(model_folder(chat(TURN, after="{{ messages[0].content }}" + PROMPT)))


def test_a_template_that_loses_messages_of_the_world_is_refused(model_folder):
    assert "loses a message" in refused(
        model_folder(chat(TURN.replace("m.content", "m.content[: 9 if m.role == 'assistant' else 2]")))
    )


def test_a_template_that_loses_turns_is_refused(model_folder):
    body = "{% if m.role != 'assistant' %}" + TURN + "{% endif %}"
    assert "0 times" in refused(model_folder(chat(body)))


def test_a_template_that_alters_content_is_refused(model_folder):
    body = TURN.replace("m.content", "(m.content | replace('h', 'H') if m.role == 'user' else m.content)")
    assert "alters content" in refused(model_folder(chat(body)))


def test_what_a_template_writes_before_its_end_token_goes_with_it(model_folder):
    renderer = Renderer.load(model_folder(chat(TURN.replace("<|im_end|>", " <|im_end|>"))), parser=PlainParser())
    cut, ended = (renderer.decode(renderer.bridge([user("o")], ended=flag)) for flag in (False, True))
    assert cut == " <|im_end|>" + ended and not renderer.verbatim


def test_a_template_cannot_reach_out_of_the_sandbox(model_folder):
    message = refused(model_folder(chat(TURN, before="{{ messages.__class__.__mro__[1].__subclasses__() }}")))
    assert "unsafe" in message


@pytest.mark.parametrize(
    ("kind", "verbatim", "drops"),
    [("smollm2", True, False), ("qwen-like", False, True), ("llama-like", False, False), ("thinks first", False, True)],
)
def test_verbatim_templates_and_those_that_drop_thoughts_are_told_apart(render: Render, kind, verbatim, drops):
    renderer = render(kind, PlainParser())
    assert (renderer.verbatim, renderer.drops_thoughts) == (verbatim, drops)


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("smollm2", Dialect(system=True, tool_role=True, calls=False, tools=False)),
        ("qwen-like", Dialect(system=True, tool_role=True, calls=True, tools=True)),
        ("llama-like", Dialect(system=True, tool_role=True, calls=False, tools=False)),
        ("gemma-like", Dialect(system=False, tool_role=False, calls=False, tools=False)),
    ],
)
def test_the_dialect_of_a_template_is_found_out(render: Render, kind, known):
    assert render(kind, HermesParser()).dialect == known


def test_a_template_whose_calls_melt_into_the_end_token_is_refused(model_folder):
    template = (Path(__file__).parent / "templates" / "qwen_like.jinja").read_text()
    folder = model_folder(template, plain=("l><|im_end|>",))
    assert "cuts a control token" in refused(folder)


def test_tools_go_where_the_template_has_a_place_for_them(render: Render):
    text = render("qwen-like", HermesParser()).text([system("s"), user("q")], (LOOKUP,))
    assert text.startswith("<|im_start|>system\ns\n\n# Tools\n\nCall functions within") and '"lookup"' in text


@pytest.mark.parametrize("kind", ["smollm2", "gemma-like"])
def test_tools_are_described_in_the_system_prompt_where_the_template_has_no_place(render: Render, kind):
    text = render(kind, HermesParser()).text([system("Be brief."), user("q")], (LOOKUP,))
    assert text.index("Be brief.\n\n# Tools") < text.index('{"name": "lookup", "description": "Finds a key."')


def test_tools_are_described_without_a_system_message_too(render: Render):
    text = render("smollm2", HermesParser()).text([user("q")], (LOOKUP,))
    assert text.startswith("<|im_start|>system\n# Tools") and text.count("<|im_start|>system") == 1


def test_tools_for_a_parser_that_reads_no_calls_are_refused(render: Render):
    with pytest.raises(RenderError, match="FencedParser reads no tool calls"):
        render("smollm2", FencedParser()).first([user("q")], (LOOKUP,))


@pytest.mark.parametrize("kind", ["smollm2", "qwen-like", "llama-like", "gemma-like"])
def test_calls_in_an_assistant_message_read_back_as_the_parser_reads_them(render: Render, kind):
    renderer = render(kind, HermesParser())
    calls = tuple(ToolCall(name="f", arguments={"x": [1, {"y": "é"}]}, id=f"c{i}") for i in range(2))
    text = renderer.text([user("q"), assistant("So:", calls)], generate=False)
    found = HermesParser().parse(text, truncated=False)[0].calls
    assert [(c.name, c.arguments) for c in found] == [(c.name, c.arguments) for c in calls]


def test_a_call_that_did_not_parse_is_written_as_it_was_where_calls_are_text(render: Render):
    broken = ToolCall(name="f", arguments=None, raw='{"name": "f", oops')
    text = render("smollm2", HermesParser()).text([user("q"), assistant("", (broken,))])
    assert '<tool_call>\n{"name": "f", oops\n</tool_call>' in text


def test_a_call_that_did_not_parse_cannot_be_rendered_by_a_template_with_calls(render: Render):
    broken = ToolCall(name="f", arguments=None, raw="oops")
    with pytest.raises(RenderError, match="'f'"):
        render("qwen-like", HermesParser()).text([user("q"), assistant("", (broken,))])


def test_the_template_is_also_found_in_the_tokenizer_config(model_folder):
    folder = model_folder(None)
    named = '[{"name": "tool_use", "template": "x"}, {"name": "default", "template": %s}]'
    template = "\"{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}\""
    (folder / "tokenizer_config.json").write_text('{"chat_template": ' + named % template + "}")
    assert Renderer.load(folder, parser=PlainParser()).text([user("q")]) == "q<|im_end|>"


def test_stop_ids_are_the_templates_end_token_and_the_models_own(model_folder):
    folder = model_folder(chat(TURN))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert Renderer.load(folder, parser=PlainParser()).stop_ids == (2, 0)
