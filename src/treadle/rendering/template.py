"""A model's chat template: found in its folder, compiled in a sandbox, rendered to text as transformers renders it.

The template is a program that came with the weights and is not trusted: it runs in jinja's immutable sandbox on plain
JSON values, and whatever it raises becomes a RenderError. The date that a template may ask for is that of loading, so
that one run writes one prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.core.errors import RenderError

if TYPE_CHECKING:
    from jinja2 import Template

    from treadle.rendering.opaque import Opacity

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, variables: Mapping[str, str], *, folder: Path) -> None:
        """`variables` are the special tokens by name. Raises RenderError if the source does not compile."""
        self.source = source
        self.variables = dict(variables)
        self.folder = folder
        self._template, self.reads = _compile(source, folder)

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """The template of a model folder. Raises RenderError naming the folder if it has none."""
        config = _read(folder / "tokenizer_config.json")
        source = _source(folder, config)
        if not source:
            raise RenderError(
                f"{folder}: the model has no chat template (no chat_template.jinja, none in tokenizer_config.json); "
                "use an instruct model or put a chat_template.jinja into the folder"
            )
        named = {**_read(folder / "special_tokens_map.json"), **config}
        variables = {name: _content(named[name]) for name in _SPECIAL if named.get(name) is not None}
        return cls(source, variables, folder=folder)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), generate: bool
    ) -> str:
        """The chat as text; `generate` asks for the prompt of an assistant turn at its end.

        Raises RenderError with the template's own words if it refuses.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generate,
                **self.variables,
            )
        except Exception as error:  # a template is a foreign program: it may raise anything
            roles = [message["role"] for message in messages]
            raise RenderError(f"{self.folder}: the chat template refuses roles {roles}: {error}") from error


def _compile(source: str, folder: Path) -> tuple[Template, Opacity]:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from treadle.rendering.opaque import opacity

    class Generation(Extension):
        """`{% generation %}` marks assistant text for others; here it only writes its body."""

        tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance attribute

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    loaded = datetime.now()

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = loaded.strftime
    try:
        return env.from_string(source), opacity(env.parse(source))
    except jinja2.TemplateError as error:
        raise RenderError(f"{folder}: the chat template does not compile: {error}") from error


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template") or ""
    if isinstance(found, str):
        return found
    named = {entry["name"]: entry["template"] for entry in found}
    return str(named.get("default", ""))


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RenderError(f"{path}: is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}
