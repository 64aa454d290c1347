"""The border to an environment's code: what it gave, checked once and made what its type says.

    environment, prompt, tools, turns, step, score  ->  the same, clean; or EnvError, GraderError: got and expected

What passes here goes into prompts, credit and the store, where nothing is checked again. So a number becomes a plain
float, finite and of bounded size (the square of it must not overflow in a baseline); a message has a known role and
text; a state key is text. The host calls these inside its guard: an object that raises while it is looked at is the
environment's fault like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar, get_args

import numpy as np

from treadle.core.errors import EnvError, GraderError
from treadle.core.messages import Message, Role, ToolCall, ToolSpec
from treadle.core.outcome import Outcome
from treadle.envs.env import Env
from treadle.envs.step import Step, ToolResult

T = TypeVar("T")
MOST_REWARD = 1e12
"""Largest size of a reward."""
ROLES = get_args(Role)
_SEQUENCE, _TEXT, _FLAG = list | tuple, str | bytes, bool | np.bool_
"""Made once: a step is looked at on every turn."""


def environment(made: object) -> Env:
    """What `make_env` gave."""
    if not isinstance(made, Env):
        raise EnvError(f"make_env: got {type(made).__name__}, expected an Env")
    return made


def prompt(env: Env, given: object) -> tuple[Message, ...]:
    """What `reset` gave: at least one message."""
    where = f"{type(env).__name__}.reset"
    if not given or not isinstance(given, list | tuple):
        raise EnvError(f"{where}: got {_short(given)}, expected a list of messages")
    return _messages(where, given)


def tools(env: Env) -> tuple[ToolSpec, ...]:
    """What the model is told about the environment's tools."""
    return _all(ToolSpec, env.tool_specs(), f"{type(env).__name__}.tool_specs")


def turns(env: Env) -> int:
    """The environment's limit on actions."""
    most = env.max_turns
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise EnvError(f"{type(env).__name__}.max_turns: got {_short(most)}, expected a whole number from 1")
    return int(most)


def step(env: Env, given: object) -> Step:
    """What `step` gave; the same object where nothing had to be made clean."""
    where = f"{type(env).__name__}.step"
    if not isinstance(given, Step):
        raise EnvError(f"{where}: got {_short(given)}, expected a Step")
    if given.outcome is not None and not isinstance(given.outcome, Outcome):
        raise EnvError(f"{where}: got outcome {_short(given.outcome)}, expected an Outcome or None")
    if given.state_key is not None and not isinstance(given.state_key, str):
        raise EnvError(f"{where}: got state_key {_short(given.state_key)}, expected text or None")
    messages, results = _messages(where, given.messages), _all(ToolResult, given.results, where)
    reward = number(f"{where}: got reward", given.reward, EnvError)
    terminated = _flag(where, "terminated", given.terminated)
    truncated = _flag(where, "truncated", given.truncated)
    held = (given.messages, given.reward, given.terminated, given.truncated, given.results)
    if all(map(is_, (messages, reward, terminated, truncated, results), held)):
        return given
    return replace(
        given, messages=messages, reward=reward, terminated=terminated, truncated=truncated, results=results
    )


def parts(given: object) -> Mapping[str, float] | None:
    """What `score` gave, in named parts; None where it cannot be scored. Raises GraderError."""
    if given is None:
        return None
    named: Mapping[Any, object] = given if isinstance(given, Mapping) else {"score": given}
    return {str(name): number(f"score part {name!r}: got", part, GraderError) for name, part in named.items()}


def number(where: str, given: object, error: Callable[[str], Exception]) -> float:
    """A number of any kind, numpy's and those of a tensor of one element included, as a finite float."""
    try:
        value = None if isinstance(given, _TEXT) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, ArithmeticError):
        value = None
    if value is None or not math.isfinite(value):
        raise error(f"{where} {_short(given)}, expected a finite number")
    if abs(value) > MOST_REWARD:
        raise error(f"{where} {value:g}, expected a size of at most {MOST_REWARD:g}")
    return value


def _messages(where: str, given: object) -> tuple[Message, ...]:
    found = _all(Message, given, where)
    for message in found:
        if message.role not in ROLES:
            raise EnvError(f"{where}: got a message of role {_short(message.role)}, expected one of {', '.join(ROLES)}")
        # None, as some write for no text, is rendered as none.
        if message.content is not None and not isinstance(message.content, str):
            raise EnvError(f"{where}: got message content {_short(message.content)}, expected text")
        _all(ToolCall, message.tool_calls, where)
    return found


def _all(kind: type[T], given: object, where: str) -> tuple[T, ...]:
    """A list or tuple of one kind, as a tuple."""
    if not isinstance(given, _SEQUENCE):
        raise EnvError(f"{where}: got {_short(given)}, expected a tuple of {kind.__name__}")
    for one in given:
        if not isinstance(one, kind):
            raise EnvError(f"{where}: got {_short(one)} among what should be {kind.__name__} only")
    return tuple(given)


def _flag(where: str, name: str, given: object) -> bool:
    if not isinstance(given, _FLAG):
        raise EnvError(f"{where}: got {name}={_short(given)}, expected True or False")
    return bool(given)


def _short(value: object) -> str:
    """A value as an error message shows it."""
    text = repr(value) if isinstance(value, str | bytes | int | float | complex | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
