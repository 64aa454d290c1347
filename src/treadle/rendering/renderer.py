"""The renderer: messages to ids, incrementally; ids back to actions.

    prompt(n + 1) = prompt(n) + completion(n) + bridge(new messages)

Ids that were sampled are never encoded again, so the next prompt extends the last one by construction (invariant 1).
`first` makes the prompt of the first turn, `bridge` what follows each completion. If the end token was sampled, the
bridge leaves it out; if a limit cut the turn off, the bridge writes it. Control strings in content stay text
(invariant 12). Both are proven for the model's template when the renderer is loaded (see `proof`).

A renderer is immutable and may be shared by threads and tasks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from treadle.core.actions import Action
from treadle.core.errors import RenderError
from treadle.core.messages import Message, ToolSpec
from treadle.core.ports import Ids
from treadle.rendering.layout import Dialect, Sheet
from treadle.rendering.mould import Moulds
from treadle.rendering.parsing import THOUGHT, Parser, TextSpan
from treadle.rendering.proof import Proven, prove
from treadle.rendering.template import ChatTemplate
from treadle.rendering.tokens import Decoded, Tokens
from treadle.rendering.veil import Controls
from treadle.trajectory.segment import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One completion as an action and its parts as tokens."""

    action: Action
    spans: tuple[Span, ...]
    """In order and disjoint; they cover every token but the stop token. A token that two parts share belongs to
    the part that is not `text`, else to the first."""


class Renderer:
    """Messages to ids and ids to actions, for one model and one parser."""

    def __init__(self, *, tokens: Tokens, proven: Proven, parser: Parser, stop_ids: Sequence[int] = ()) -> None:
        """Use `load`. `stop_ids` are more ids that end a completion, beside the template's end token."""
        self._tokens = tokens
        self._proven = proven
        self._parser = parser
        controls = Controls(list(tokens.controls), written=proven.layout.template.source)
        self._pattern = controls.pattern
        self._moulds = Moulds(proven.layout, controls, tokens, lead=proven.lead)
        spoken = [marker for marker in parser.markers if marker in tokens.controls]
        self._spoken = Controls(spoken, written="").pattern
        self._end = tokens.controls[proven.end]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((self._end, *stop_ids)))

    @classmethod
    def load(cls, folder: Path, *, parser: Parser) -> Renderer:
        """The renderer of a model folder.

        Raises RenderError if the folder has no chat template or tokenizer, or if the bridge cannot be proven.
        """
        folder = Path(folder)
        template = ChatTemplate.load(folder)
        tokens = Tokens.load(folder)
        proven = prove(template, tokens, parser)
        return cls(tokens=tokens, proven=proven, parser=parser, stop_ids=_stops(folder, template, tokens))

    @property
    def verbatim(self) -> bool:
        """Whether the template writes assistant text as it was sampled, so that decoded paths equal its text."""
        return self._proven.verbatim

    @property
    def drops_thoughts(self) -> bool:
        """Whether the template, rendering a chat whole, leaves out thoughts of earlier turns."""
        return self._proven.drops_thoughts

    @property
    def control_strings(self) -> dict[str, int]:
        """Text to id of every control token of the tokenizer."""
        return self._tokens.controls

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of `control_strings`: no content ever encodes to one."""
        return self._tokens.control_ids

    @property
    def dialect(self) -> Dialect:
        """What the template knows by itself."""
        return self._proven.layout.dialect

    def first(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Ids:
        """Ids of the chat's beginning with the prompt of an assistant turn. int32[P]

        Raises RenderError if the template refuses the messages, or for tools that the parser cannot read calls of.
        """
        return self._ids(self._proven.layout.whole(messages, tools))

    def bridge(self, new_messages: Sequence[Message], *, ended: bool) -> Ids:
        """Ids to append after a completion: the end token unless it was sampled (`ended`), the new messages, the
        prompt of the next turn. int32[B]

        Raises RenderError if a message is an assistant's, or the template refuses one.
        """
        if any(message.role == "assistant" for message in new_messages):
            raise RenderError("bridge: got a message of role 'assistant', expected only what the world says")
        ids = self._moulds.bridge(new_messages, ended=ended)
        if ids is not None:
            return _array(ids)
        sheet = self._proven.layout.after(new_messages)
        assert sheet.text.startswith(self._proven.lead)
        return self._ids(Sheet(sheet.text[len(self._proven.lead) :], sheet.veil) if ended else sheet)

    def demonstration(self, text: str) -> Ids:
        """Ids of an assistant turn as the policy would have sampled it, end token included. int32[n]

        Thought and call tags of the parser become control tokens where the tokenizer has them; nothing else does.
        """
        return _array([*self._tokens.encode_written(text, self._spoken), self._end])

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generate: bool = True) -> str:
        """The whole chat as the template writes it. Raises RenderError as `first` does."""
        return self._proven.layout.whole(messages, tools, generate=generate).plain

    def ended(self, ids: Sequence[int] | Ids) -> bool:
        """Whether a completion ends with the template's end token, so that the bridge must leave it out."""
        return len(ids) > 0 and int(ids[-1]) == self._end

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; control strings in it stay text."""
        return self._tokens.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of ids, control tokens included."""
        return self._tokens.decode([int(i) for i in ids])

    def parse(self, ids: Sequence[int] | Ids, *, truncated: bool = False, turn: int = 0) -> Parsed:
        """The action in a completion. `truncated` says that a limit ended it; `turn` makes call ids unique."""
        said: list[int] = np.asarray(ids).tolist()
        if said and said[-1] in self.stop_ids:
            said.pop()
        decoded = self._tokens.locate(said)
        action, parts = self._read(decoded.text, truncated)
        if action.calls:
            calls = tuple(replace(call, id=f"t{turn:04d}{call.id}") for call in action.calls)
            action = replace(action, calls=calls)
        return Parsed(action=action, spans=_spans(decoded, parts))

    def _read(self, text: str, truncated: bool) -> tuple[Action, tuple[TextSpan, ...]]:
        if not self._proven.thinks_first:
            return self._parser.parse(text, truncated=truncated)
        closed = text.find(THOUGHT)
        head = len(text) if closed < 0 else closed + len(THOUGHT)
        action, parts = self._parser.parse(text[head:], truncated=truncated)
        moved = tuple(TextSpan(part.kind, part.start + head, part.end + head) for part in parts)
        return replace(action, text=text), (TextSpan("thought", 0, head), *moved)

    def _ids(self, sheet: Sheet) -> Ids:
        return _array(self._tokens.encode_written(sheet.text, self._pattern, sheet.veil.reveal))


def _array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)


def _spans(decoded: Decoded, parts: Sequence[TextSpan]) -> tuple[Span, ...]:
    """Character spans as token spans: marked parts take every token they touch, text takes the rest."""
    spans: list[Span] = []
    at, count = 0, len(decoded.starts)
    for part in parts:
        if part.kind == "text":
            continue
        start, end = decoded.tokens(part.start, part.end)
        start, end = max(start, at), max(end, at)
        if start > at:
            spans.append(Span("text", at, start))
        spans.append(Span(part.kind, start, end))
        at = end
    if at < count:
        spans.append(Span("text", at, count))
    return tuple(spans)


def _stops(folder: Path, template: ChatTemplate, tokens: Tokens) -> list[int]:
    """Ids that end a turn by the model's own files."""
    stops = []
    path = folder / "generation_config.json"
    if path.is_file():
        eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        stops += eos if isinstance(eos, list) else [eos]
    stops.append(tokens.controls.get(template.variables.get("eos_token", "")))
    return [stop for stop in stops if stop is not None]
