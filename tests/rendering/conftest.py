"""Model folders without weights: a small byte-level BPE tokenizer and a chat template."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from treadle.rendering import Parser, Renderer

TEMPLATES = Path(__file__).parent / "templates"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<empty_output>")
HEADERS = ("<|begin|>", "<|end|>", "<|start|>", "<|header|>", "<|eot|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CORPUS = (
    "You are a helpful AI assistant. List the files in the folder and count the lines of notes.txt.",
    "```bash\nls -la | wc -l\ncat notes.txt\n```\n\nThe answer is 42.\n",
    '<tool_call>\n{"name": "lookup", "arguments": {"key": "value"}}\n</tool_call>\n<|im_end|>\n<|im_start|>user\n',
    "user\nassistant\nsystem\ntool\n\n  indented = [1, 2, 3]  # déjà vu 你好 😀",
)


def tokenizer(special: tuple[str, ...], plain: tuple[str, ...] = ()) -> Tokenizer:
    """A byte-level BPE of a few hundred words; control tokens come first, as in SmolLM2."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(CORPUS * 4, trainer)
    built.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return built


def write(folder: Path, built: Tokenizer, template: str | None, *, bos: str = "", eos: str = "") -> Path:
    """A model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    built.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos or None, "eos_token": eos or None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str, str]] = {
    "smollm2": ("smollm2.jinja", CHATML, (), "<|im_start|>", "<|im_end|>"),
    "smollm2 with tags": ("smollm2.jinja", CHATML, TAGS, "<|im_start|>", "<|im_end|>"),
    "qwen-like": ("qwen_like.jinja", CHATML, TAGS, "", "<|im_end|>"),
    "llama-like": ("llama_like.jinja", HEADERS, (), "<|begin|>", "<|end|>"),
    "gemma-like": ("gemma_like.jinja", HEADERS, (), "<|begin|>", "<|eot|>"),
    "thinks first": ("thinks_first.jinja", CHATML, TAGS, "", "<|im_end|>"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a kind."""

    @cache
    def made(kind: str) -> Path:
        template, special, plain, bos, eos = KINDS[kind]
        path = tmp_path_factory.mktemp(kind.replace(" ", "_"))
        return write(path, tokenizer(special, plain), (TEMPLATES / template).read_text(), bos=bos, eos=eos)

    return made


@pytest.fixture(scope="session")
def render(folder: Callable[[str], Path]) -> Callable[[str, Parser], Renderer]:
    """The renderer of a kind with a parser; each is loaded once."""

    @cache
    def loaded(kind: str, parser: Parser) -> Renderer:
        return Renderer.load(folder(kind), parser=parser)

    return loaded


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model folder: `model_folder(template, special=..., plain=...)`."""

    def made(template: str | None, *, special: tuple[str, ...] = CHATML, plain: tuple[str, ...] = ()) -> Path:
        return write(tmp_path / "model", tokenizer(special, plain), template, eos="<|im_end|>")

    return made
