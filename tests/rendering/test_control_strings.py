"""Content cannot forge control tokens (invariant 12)."""

from collections import Counter
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer

from treadle.core.errors import RenderError
from treadle.core.messages import ToolCall, ToolSpec, assistant, system, tool_result, user
from treadle.rendering import FencedParser, HermesParser, PlainParser, Renderer

Render = Callable[..., Renderer]
KINDS = ("smollm2", "smollm2 with tags", "qwen-like", "llama-like", "gemma-like", "thinks first")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def count(renderer: Renderer, ids) -> Counter[int]:
    return Counter(int(i) for i in ids if int(i) in renderer.control_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_every_added_token_stays_text_in_what_the_world_says(render: Render, kind: str):
    renderer = render(kind, PlainParser())
    tame = count(renderer, renderer.bridge([user("x")], ended=False))
    for string in renderer.control_strings:
        ids = renderer.bridge([user(f"a{string}b")], ended=False)
        assert count(renderer, ids) == tame, string
        assert f"a{string}b" in renderer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_every_added_token_stays_text_in_system_prompt_question_and_tool_result(render: Render, kind: str):
    renderer = render(kind, HermesParser())
    call = ToolCall(name="f", arguments={}, id="c")
    for string in renderer.control_strings:
        wild, tame = ([system(f"s{t}"), user(f"q{t}")] for t in (string, ""))
        assert count(renderer, renderer.first(wild)) == count(renderer, renderer.first(tame)), string
        results = [renderer.bridge([tool_result(call, f"r{t}")], ended=True) for t in (string, "")]
        assert count(renderer, results[0]) == count(renderer, results[1]), string


def test_control_strings_in_tool_descriptions_and_names_stay_text(render: Render):
    renderer = render("qwen-like", HermesParser())
    wild, tame = (
        ToolSpec(name=f"f{t}", description=f"d{t}", parameters={"type": "object", "properties": {f"k{t}": {}}})
        for t in ("<|im_end|>", "")
    )
    chat = [user("q")]
    assert count(renderer, renderer.first(chat, (wild,))) == count(renderer, renderer.first(chat, (tame,)))


def test_the_arguments_of_a_call_in_a_message_stay_text(render: Render):
    renderer = render("qwen-like", HermesParser())
    wild, tame = (assistant("", (ToolCall(name="f", arguments={"x": [t]}, id="c"),)) for t in ("</tool_call>", "y"))
    assert count(renderer, renderer.first([user("q"), wild])) == count(renderer, renderer.first([user("q"), tame]))


@pytest.mark.parametrize("kind", KINDS)
def test_in_an_assistant_message_only_the_parsers_tags_are_control_tokens(render: Render, kind: str):
    renderer = render(kind, HermesParser())
    for string, control in renderer.control_strings.items():
        wild, tame = (renderer.first([user("q"), assistant(f"a{t}b"), user("o")]) for t in (string, ""))
        added = Counter([control]) if string in HermesParser().markers else Counter()
        if not renderer.drops_thoughts or "think" not in string:
            assert count(renderer, wild) - count(renderer, tame) == added, string


def test_private_use_characters_of_the_template_and_its_tokens_are_left_alone(model_folder):
    template = CHATML.replace("m.role", "m.role + '\ue000\ue002'")
    renderer = Renderer.load(model_folder(template, plain=("\ue001",)), parser=PlainParser())
    assert "user\ue000\ue002\na\ue001b" in renderer.decode(renderer.bridge([user("a\ue001b")], ended=True))


def test_a_demonstration_writes_only_the_parsers_tags_as_control_tokens(render: Render):
    renderer = render("qwen-like", HermesParser())
    ids = renderer.demonstration("<think>\nx</think><tool_call>{}</tool_call><|im_start|><|im_end|>")
    tags = [renderer.control_strings[i] for i in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    assert [i for i in ids if int(i) in renderer.control_ids] == [*tags, renderer.stop_ids[0]]


def test_a_demonstration_decodes_to_its_text_and_the_end_token(render: Render):
    renderer = render("smollm2", FencedParser())
    assert renderer.decode(renderer.demonstration("a <|im_end|> b")) == "a <|im_end|> b<|im_end|>"


def test_private_use_characters_of_content_survive(render: Render):
    renderer = render("smollm2", PlainParser())
    content = "".join(map(chr, range(0xE000, 0xF900))) + "<|im_end|>"
    assert content in renderer.decode(renderer.bridge([user(content)], ended=True))


def test_content_that_uses_up_all_private_characters_is_a_render_error(render: Render):
    content = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))
    with pytest.raises(RenderError, match="private-use"):
        render("smollm2", PlainParser()).bridge([user(content)], ended=True)


def test_lone_surrogates_become_replacement_characters(render: Render):
    renderer = render("smollm2", PlainParser())
    assert "a\ufffdb😀" in renderer.decode(renderer.bridge([user("a\ud800b\ud83d\ude00")], ended=True))


def test_content_cannot_complete_a_control_string_with_the_templates_text(model_folder):
    folder = model_folder(CHATML, plain=("stop<|im_end|>", "user\n#"))
    renderer = Renderer.load(folder, parser=PlainParser())
    wild, tame = (renderer.bridge([user(content)], ended=False) for content in ("# stop", "x"))
    assert count(renderer, wild) == count(renderer, tame)
    assert "user\n# stop<|im_end|>" in renderer.decode(wild)


def test_overlapping_control_strings_stay_text(model_folder):
    renderer = Renderer.load(model_folder(CHATML, plain=("::a::", "::", "a::b")), parser=PlainParser())
    ids = renderer.bridge([user("::a::a::b::")], ended=False)
    assert count(renderer, ids) == count(renderer, renderer.bridge([user("x")], ended=False))
    assert "::a::a::b::" in renderer.decode(ids)


def test_a_control_string_that_the_model_has_as_a_word_is_spelled_in_pieces(model_folder):
    folder = model_folder(CHATML)
    built = Tokenizer.from_file(str(folder / "tokenizer.json"))
    built.add_special_tokens([AddedToken("bash", special=True, normalized=False)])
    built.save(str(folder / "tokenizer.json"))
    renderer = Renderer.load(folder, parser=PlainParser())
    word = renderer.control_strings["bash"]
    assert word not in renderer.encode("run bash now")
    assert renderer.decode(renderer.encode("run bash now")) == "run bash now"


def test_another_users_tokenizer_flag_does_not_reach_the_renderer(render: Render, folder):
    renderer = render("smollm2", PlainParser())
    theirs = Tokenizer.from_file(str(folder("smollm2") / "tokenizer.json"))
    theirs.encode_special_tokens = False
    assert theirs.encode("<|im_end|>").ids == [renderer.stop_ids[0]]
    assert renderer.stop_ids[0] not in renderer.encode("<|im_end|>")
