"""The proof, made when a template is loaded, that the bridge writes what the template would have written.

First the dialect: each thing a template may know is tried. Then, for every case below, the whole chat is rendered and
compared with what the bridge appends: it must end with exactly that text, after one turn and after two, with and
without a system message, and cutting there must not change a control token. If the richest dialect fails, poorer ones
are tried, which fold calls and tool results into text; if all fail, the reason of the last stands in a RenderError.

A template that writes assistant text as it was sampled is `verbatim`: then the path of ids decodes to the template's
own text. Others drop earlier thoughts, trim, or add a header. They keep the bridge, because earlier turns are never
rendered again, and are told apart so that nobody expects the two texts to be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from treadle.core.errors import RenderError
from treadle.core.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from treadle.rendering.layout import Dialect, Layout, Sheet
from treadle.rendering.parsing import THINK, THOUGHT, Parser
from treadle.rendering.template import ChatTemplate
from treadle.rendering.tokens import Tokens
from treadle.rendering.veil import Controls

_CALL = ToolCall(name="lookup", arguments={"key": "Kx7", "most": 3}, id="callaaaa1")
_OTHER = ToolCall(name="store", arguments={"items": ["Ky8"], "deep": {"on": True}}, id="callaaaa2")
_EMPTY = ToolCall(name="finish", arguments={}, id="callaaaa3")
_TOOL = ToolSpec(
    name="lookup",
    description="Gives the value of Dz9.",
    parameters={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)
_HEAD = (system("Ps1"), user("Pu1"))


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of assistant turn and what the world answers to it."""

    name: str
    turn: Message
    answer: tuple[Message, ...]
    ended: bool = True
    """False for a turn that a limit cut off before its end token."""


CASES = (
    Case("plain", assistant("Ta1"), (user("Oa1"),)),
    Case("think", assistant(f"{THINK}\nTt2\n{THOUGHT}\n\nTa2"), (user("Oa2"),)),
    Case("call", assistant("Ta3", (_CALL,)), (tool_result(_CALL, "Oa3"),)),
    Case(
        "parallel calls",
        assistant("", (_CALL, _OTHER)),
        (tool_result(_CALL, "Oa4"), tool_result(_OTHER, "Ob4")),
    ),
    Case("cut-off turn", assistant("Ta5\n```bash\nls"), (user("Oa5"),), ended=False),
    Case("empty arguments", assistant("", (_EMPTY,)), (tool_result(_EMPTY, "Oa6"),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What is known about a template once its bridge is proven."""

    layout: Layout
    lead: str
    """What the template writes behind a turn's text up to and including its end token."""
    end: str
    """The control string that ends a turn."""
    verbatim: bool
    """Assistant text comes out as it went in, white space and thoughts included."""
    drops_thoughts: bool
    """A thought of an earlier turn is missing when the chat is rendered whole."""
    thinks_first: bool
    """The prompt of a turn opens a thought, so a turn begins inside it."""


def prove(template: ChatTemplate, tokens: Tokens, parser: Parser) -> Proven:
    """Prove the bridge of a template. Raises RenderError with the reason if it cannot be proven."""
    controls = Controls(list(tokens.controls), written=template.source)
    poor = Dialect(system=False, tool_role=False, calls=False, tools=False)
    best = _survey(Layout(template, controls, parser, poor), controls, parser)
    tries = [best, replace(best, calls=False, tools=False), replace(best, calls=False, tools=False, tool_role=False)]
    failure: RenderError | None = None
    for dialect in dict.fromkeys(tries):
        try:
            return _proven(Layout(template, controls, parser, dialect), tokens, controls)
        except RenderError as error:
            failure = error
    assert failure is not None
    raise failure


def _survey(poor: Layout, controls: Controls, parser: Parser) -> Dialect:
    """What the template seems to know."""

    def layout(**known: bool) -> Layout:
        return Layout(poor.template, controls, parser, replace(poor.dialect, **known))

    has_system = _holds(lambda: layout(system=True).whole(_HEAD), "Ps1", "Pu1")
    case = CASES[3]
    has_role = _holds(lambda: layout(system=has_system, tool_role=True).after(case.answer), "Oa4", "Ob4")
    known = layout(system=has_system, tool_role=has_role, calls=True)
    has_calls = all(_reads_back(known, case, parser) for case in CASES if case.turn.tool_calls)
    known = layout(system=has_system, tool_role=has_role, calls=has_calls, tools=True)
    has_tools = has_calls and _holds(lambda: known.whole(_HEAD, (_TOOL,)), "Ps1", "lookup", "Dz9", "required")
    return Dialect(system=has_system, tool_role=has_role, calls=has_calls, tools=has_tools)


def _holds(render: Callable[[], Sheet], *needles: str) -> bool:
    """Whether a rendering is accepted and shows each needle once."""
    try:
        text = render().plain
    except RenderError:
        return False
    return all(needle in text for needle in needles)


def _reads_back(layout: Layout, case: Case, parser: Parser) -> bool:
    """Whether the parser finds the turn's calls in what the template writes for them."""
    try:
        text = layout.whole((*_HEAD, case.turn, *case.answer)).plain
    except RenderError:
        return False
    calls = parser.parse(text, truncated=False)[0].calls
    return [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in case.turn.tool_calls]


def _proven(layout: Layout, tokens: Tokens, controls: Controls) -> Proven:
    folder = layout.template.folder
    leads = {_lead(layout.after(case.answer).text, controls) for case in CASES}
    if len(leads) != 1 or None in leads:
        shown = sorted(repr(lead) for lead in leads)
        raise RenderError(f"{folder}: the chat template must end every turn with one end token, got {', '.join(shown)}")
    (lead,) = leads
    assert lead is not None
    end = controls.pattern.findall(lead)[-1]
    for case in CASES:
        _check_bridge(layout, case)
        _check_cut(layout, case, tokens, controls)
    _check_hostile(layout, tokens)
    prompt, bare = layout.whole(_HEAD).text, layout.whole(_HEAD, generate=False).text
    opening = prompt.removeprefix(bare)
    return Proven(
        layout=layout,
        lead=lead,
        end=end,
        verbatim=_is_verbatim(layout, tokens, controls, lead, end),
        drops_thoughts=_drops_thoughts(layout),
        thinks_first=opening.count(THINK) > opening.count(THOUGHT),
    )


def _lead(bridge: str, controls: Controls) -> str | None:
    """What a bridge begins with, up to and including the end token; None if it does not begin with one."""
    found = controls.pattern.search(bridge)
    if found is None or bridge[: found.start()].strip():
        return None
    return bridge[: found.end()]


def _chats(case: Case) -> Sequence[tuple[Message, ...]]:
    """Chats that end with the case: after one turn, after two, and with no system message."""
    once = (case.turn, *case.answer)
    return ((*_HEAD, *once), (*_HEAD, *once, *once), (_HEAD[1], *once), (_HEAD[1], *once, *once))


def _check_bridge(layout: Layout, case: Case) -> None:
    bridge = layout.after(case.answer).plain
    for chat in _chats(case):
        for tools in ((), (_TOOL,)) if layout.dialect.tools else ((),):
            text = layout.whole(chat, tools).plain
            if not text.endswith(bridge):
                raise RenderError(
                    f"{layout.template.folder}: the bridge cannot be proven for the case {case.name!r}: the chat "
                    f"template ends {len(chat)} messages with {text[-len(bridge) :]!r}, expected {bridge!r}"
                )
            said = text[: -len(bridge)]
            if case.turn.content and not case.turn.content.startswith(THINK) and case.turn.content not in said:
                raise RenderError(f"{layout.template.folder}: the chat template loses the text of the turn {said!r}")
            if any(answer.content not in bridge for answer in case.answer):
                raise RenderError(f"{layout.template.folder}: the chat template loses a message in {bridge!r}")


def _check_cut(layout: Layout, case: Case, tokens: Tokens, controls: Controls) -> None:
    """Cutting the chat at the bridge neither splits nor makes a control token."""
    bridge = layout.after(case.answer).text
    text = layout.whole((*_HEAD, case.turn, *case.answer)).text
    whole, said, added = (
        Counter(i for i in tokens.encode_written(part, controls.pattern) if i in tokens.control_ids)
        for part in (text, text[: -len(bridge)], bridge)
    )
    if whole != said + added:
        raise RenderError(f"{layout.template.folder}: the end of an assistant turn cuts a control token in {text!r}")


def _check_hostile(layout: Layout, tokens: Tokens) -> None:
    """Control strings in content come out as they went in, hidden on the way."""
    hostile = "h".join(["H", *tokens.controls, "H"])
    if hostile not in layout.after([user(hostile)]).plain:
        raise RenderError(f"{layout.template.folder}: the chat template alters content, as in {hostile[:80]!r}")


def _is_verbatim(layout: Layout, tokens: Tokens, controls: Controls, lead: str, end: str) -> bool:
    """Whether prompt, turn and bridge make the template's own text, in ids too, however the turn ended."""
    prompt = layout.whole(_HEAD).plain
    spaced = Case("spaced", assistant(" Tv7\n"), CASES[0].answer)
    for case in (case for case in (*CASES, spaced) if not case.turn.tool_calls):
        sheet, bridge = layout.whole((*_HEAD, case.turn, *case.answer)), layout.after(case.answer).plain
        path = prompt + case.turn.content + (end + bridge[len(lead) :] if case.ended else bridge)
        decoded = tokens.decode(tokens.encode_written(sheet.text, controls.pattern, sheet.veil.reveal))
        if not path == sheet.plain == decoded:
            return False
    return True


def _drops_thoughts(layout: Layout) -> bool:
    case = CASES[1]
    text = layout.whole((*_HEAD, case.turn, *case.answer, case.turn, *case.answer)).text
    return text.count("Tt2") < 2
