"""`@tool`: a typed method becomes a function that the model can call.

Type hints and docstring give the JSON schema; the same hints validate the arguments of each call. What the model did
wrong is answered to the model in one line: an unknown tool, arguments that did not parse or do not fit, a `ToolError`,
a time-out that could be cancelled. Any other exception of a tool is the environment's fault and passes through.

Calls of one action run in the model's order; neighbours that are all marked `concurrent` run at the same time. Once a
tool hangs beyond cancelling, nothing more is called: the step carries the outcome (timeout, tool).
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, overload
from weakref import WeakKeyDictionary

from treadle.core.errors import ToolError
from treadle.core.messages import ToolCall, ToolSpec, tool_result
from treadle.core.outcome import tool_timeout
from treadle.envs.calling import Caller, Overrun
from treadle.envs.step import Step, ToolResult

F = TypeVar("F", bound=Callable[..., Any])
Answer = tuple[ToolResult, bool]
"""A call's result, and whether the tool hangs beyond cancelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@tool` was told about one method."""

    timeout_s: float = 10.0
    read_only: bool = False
    """It changes nothing: a cache may answer for it."""
    idempotent: bool = False
    """Calling it twice is as good as once."""
    concurrent: bool = False
    """It may run at the same time as its neighbours in one action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of an environment class."""

    name: str
    options: ToolOptions
    spec: ToolSpec
    model: Any
    """Pydantic model of the arguments."""


_MARKED: WeakKeyDictionary[Callable[..., Any], ToolOptions] = WeakKeyDictionary()
_TOOLS: WeakKeyDictionary[type[Any], Mapping[str, Tool]] = WeakKeyDictionary()


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *, timeout_s: float = 10.0, read_only: bool = False, idempotent: bool = False, concurrent: bool = False
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    *,
    timeout_s: float = 10.0,
    read_only: bool = False,
    idempotent: bool = False,
    concurrent: bool = False,
) -> F | Callable[[F], F]:
    """Mark a method as a tool, with or without arguments. The method itself stays as it is.

    Raises ValueError for a time-out that is not positive and for a parameter without a type hint.
    """
    if not timeout_s > 0:
        raise ValueError(f"@tool timeout_s: got {timeout_s}, expected > 0")
    options = ToolOptions(timeout_s=timeout_s, read_only=read_only, idempotent=idempotent, concurrent=concurrent)

    def mark(method: F) -> F:
        for parameter in _parameters(method):
            if parameter.annotation is inspect.Parameter.empty:
                raise ValueError(f"@tool {method.__qualname__}: parameter {parameter.name!r} needs a type hint")
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise ValueError(f"@tool {method.__qualname__}: *{parameter.name} cannot be described to a model")
        _MARKED[method] = options
        return method

    return mark if function is None else mark(function)


def tools_of(env: type[Any]) -> Mapping[str, Tool]:
    """The tools of an environment class in order of definition, by name; overriding without `@tool` removes one."""
    if (known := _TOOLS.get(env)) is not None:
        return known
    methods: dict[str, Any] = {}
    for base in reversed(env.__mro__):
        methods.update(vars(base))
    marked = {name: m for name, m in methods.items() if inspect.isfunction(m) and m in _MARKED}
    return _TOOLS.setdefault(env, {name: _describe(name, method) for name, method in marked.items()})


def specs_of(env: type[Any]) -> tuple[ToolSpec, ...]:
    """What the model is told about the tools of an environment class."""
    return tuple(found.spec for found in tools_of(env).values())


async def dispatch(env: object, calls: Sequence[ToolCall], *, caller: Caller) -> Step:
    """Answer the calls of one action. Exceptions other than ToolError pass through."""
    tools = tools_of(type(env))
    results: list[ToolResult] = []
    for batch in _batches(calls, tools):
        answers = await _together([_answer(env, call, tools, caller) for call in batch])
        results += [result for result, _ in answers]
        hung = [result for result, stuck in answers if stuck]
        if hung:
            name = hung[0].call.name if hung[0].call else ""
            return Step(results=tuple(results), outcome=tool_timeout(f"tool {name} could not be cancelled"))
    messages = tuple(tool_result(result.call, result.content) for result in results if result.call)
    return Step(messages=messages, results=tuple(results))


async def _together(answers: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Await one, or several at the same time; the first failure cancels the others and passes through bare."""
    if len(answers) == 1:
        return [await answers[0]]
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(answer) for answer in answers]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in running]


async def _answer(env: object, call: ToolCall, tools: Mapping[str, Tool], caller: Caller) -> Answer:
    """One call's result, and whether it hangs beyond cancelling."""
    start = time.perf_counter()

    def result(content: str, *, error: bool) -> ToolResult:
        return ToolResult(call=call, content=content, error=error, seconds=time.perf_counter() - start)

    found = tools.get(call.name)
    if found is None:
        return result(_unknown(call.name, tools), error=True), False
    if call.arguments is None:
        return result(f"Error: {call.name}: the arguments are not a JSON object", error=True), False
    arguments, problem = _validated(found, call.arguments)
    if problem:
        return result(f"Error: {call.name}: {problem}", error=True), False
    limit_s, alone = found.options.timeout_s, found.options.concurrent
    try:
        value = await caller.call(partial(getattr(env, call.name), **arguments), limit_s=limit_s, alone=alone)
    except ToolError as error:
        return result(f"Error: {error}", error=True), False
    except Overrun as overrun:
        text = f"Error: {call.name} took longer than {limit_s:g} s and was stopped"
        return result(text, error=True), not overrun.stopped
    return result(_text(value), error=False), False


def _batches(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> Iterator[list[ToolCall]]:
    """Calls in order; neighbours that may overlap come together."""
    batch: list[ToolCall] = []
    for call in calls:
        together = call.name in tools and tools[call.name].options.concurrent
        if not together:
            if batch:
                yield batch
            yield [call]
            batch = []
            continue
        batch.append(call)
    if batch:
        yield batch


def _unknown(name: str, tools: Mapping[str, Tool]) -> str:
    """What the model reads about a tool that does not exist."""
    close = difflib.get_close_matches(name, tools, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"Error: unknown tool {name!r}.{guess} Tools: {', '.join(tools) or 'none'}"


def _text(value: Any) -> str:
    """A tool's value as the model reads it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    import json

    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _validated(found: Tool, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Arguments converted to the hinted types, or one line that says what is wrong."""
    from pydantic import ValidationError

    try:
        checked = found.model.model_validate(dict(arguments))
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False)[:3]:
            where = ".".join(str(part) for part in item["loc"])
            got = "" if item["type"] in ("missing", "extra_forbidden") else f", got {_short(item['input'])}"
            message = {"missing": "is missing", "extra_forbidden": "is not a parameter"}.get(item["type"], item["msg"])
            problems.append(f"{where}: {message}{got}")
        known = ", ".join(found.spec.parameters.get("properties", {})) or "none"
        return {}, f"{'; '.join(problems)}. Parameters: {known}"
    return {name: getattr(checked, field) for name, field in _fields(found.model)}, ""


def _fields(model: Any) -> list[tuple[str, str]]:
    """(parameter name, model field name) pairs."""
    return [(info.alias, name) for name, info in model.model_fields.items()]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that the model fills in: all but `self`."""
    return list(inspect.signature(method).parameters.values())[1:]


def _describe(name: str, method: Callable[..., Any]) -> Tool:
    """Schema and validator of one method. Pydantic is imported here: it is heavy, and only tools need it."""
    from pydantic import ConfigDict, Field, create_model

    hints = get_type_hints(method, include_extras=True)
    summary, about = _docstring(inspect.getdoc(method) or "")
    fields: dict[str, Any] = {}
    for parameter in _parameters(method):
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # Fields get neutral names, parameters stand as aliases: a parameter may be called `json` or `copy`.
        words = [word for word in get_args(hints[parameter.name])[1:] if isinstance(word, str)]
        annotated = words[0] if words and get_origin(hints[parameter.name]) is Annotated else None
        info = Field(default, alias=parameter.name, description=about.get(parameter.name, annotated))
        fields[f"p_{parameter.name}"] = (hints[parameter.name], info)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    model: Any = create_model(name, __config__=config, **fields)
    schema = _tidy(model.model_json_schema(by_alias=True))
    schema.setdefault("properties", {})
    spec = ToolSpec(name=name, description=summary, parameters=schema)
    return Tool(name=name, options=_MARKED[method], spec=spec, model=model)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Description and, from a Google-style `Args:` section, a line per parameter. `Annotated[T, "words"]` does too."""
    head, _, rest = text.partition("\nArgs:\n")
    about: dict[str, str] = {}
    for line in rest.splitlines():
        name, colon, words = line.strip().partition(":")
        if not line.startswith(" "):
            break
        if colon and name.split(" ")[0].isidentifier():
            about[name.split(" ")[0]] = words.strip()
    return " ".join(head.split()), about


def _tidy(schema: Any) -> Any:
    """A JSON schema without pydantic's titles, which only cost tokens."""
    if isinstance(schema, Mapping):
        named = ("properties", "$defs")  # below these, keys are names that may well be `title`
        return {
            key: {name: _tidy(value) for name, value in inner.items()} if key in named else _tidy(inner)
            for key, inner in schema.items()
            if not (key == "title" and isinstance(inner, str))
        }
    return [_tidy(item) for item in schema] if isinstance(schema, list) else schema
