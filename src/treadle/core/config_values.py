"""Reading one value as the type that a config's field declares.

Text (from a command line) is parsed; typed values (from TOML or Python) must fit, except that an int fits a float.
Types: None, bool, int, float, str, Path, enums by value or name, Literal, tuples, lists, mappings and unions of these.
Of a union the first member that fits wins: None first, str last.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

TRUE, FALSE, NOTHING = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "null", "")


class Missing(Enum):
    """No value."""

    VALUE = "missing"


def origin_of(hint: Any) -> Any:
    """`tuple` of `tuple[int, ...]`; a plain type itself."""
    origin = typing.get_origin(hint) or hint
    return Mapping if origin is typing.Mapping else origin


def members(hint: Any) -> list[Any]:
    """Alternatives of a union in the order to try them: None, then what text can be mistaken for least, str last."""
    if origin_of(hint) not in (typing.Union, types.UnionType):
        return [hint]
    return sorted(typing.get_args(hint), key=lambda m: (m is not type(None), m is str))


def fit(hint: Any, value: object) -> Any:
    """`value` read as `hint`, or Missing.VALUE when it does not fit."""
    origin = origin_of(hint)
    if hint in (Any, object):
        return value
    if hint is type(None):
        return None if value is None or (isinstance(value, str) and value.lower() in NOTHING) else Missing.VALUE
    if origin is typing.Literal:
        return next((c for c in typing.get_args(hint) if c == value or str(c) == value), Missing.VALUE)
    if origin in (tuple, list, Sequence):
        return _fit_sequence(hint, value)
    if not isinstance(origin, type):
        return Missing.VALUE
    if issubclass(origin, Enum):
        return next((m for m in origin if value in (m, m.value, m.name)), Missing.VALUE)
    if origin in (dict, Mapping):
        return value if isinstance(value, Mapping) else Missing.VALUE
    if origin in READERS:
        try:
            return READERS[origin](value)
        except (TypeError, ValueError):
            return Missing.VALUE
    if getattr(origin, "_is_protocol", False):
        return Missing.VALUE if isinstance(value, str) else value
    return value if isinstance(value, origin) else Missing.VALUE


def _fit_sequence(hint: Any, value: object) -> Any:
    if isinstance(value, str):
        inner = value.strip().removeprefix("(").removeprefix("[").removesuffix(")").removesuffix("]").strip()
        value = [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]
    if not isinstance(value, tuple | list):
        return Missing.VALUE
    kind, args = origin_of(hint), typing.get_args(hint)
    fixed = kind is tuple and args and args[-1] is not Ellipsis
    if fixed and len(args) != len(value):
        return Missing.VALUE
    wanted = args if fixed else [(args or (Any,))[0]] * len(value)
    found = [next((f for m in members(w) if (f := fit(m, v)) is not Missing.VALUE), Missing.VALUE)
             for w, v in zip(wanted, value, strict=True)]
    if any(f is Missing.VALUE for f in found):
        return Missing.VALUE
    return found if kind is list else tuple(found)


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUE + FALSE:
        return value.lower() in TRUE
    raise ValueError


def _int(value: object) -> int:
    if isinstance(value, str):
        number = float(value.replace("_", ""))
        if not number.is_integer():
            raise ValueError
        return int(value.replace("_", "")) if value.lstrip("+-").replace("_", "").isdigit() else int(number)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if number != number:
        raise ValueError
    return number


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _path(value: object) -> Path:
    return Path(_str(value) if not isinstance(value, Path) else value).expanduser()


READERS: dict[type, Callable[[object], object]] = {bool: _bool, int: _int, float: _float, str: _str, Path: _path}


def say(hint: Any) -> str:
    """The type in words, for messages."""
    if hint is type(None):
        return "none"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(m.value) for m in hint)}"
    if origin_of(hint) is typing.Literal:
        return f"one of {', '.join(str(a) for a in typing.get_args(hint))}"
    if len(found := members(hint)) > 1:
        return " or ".join(say(m) for m in found[::-1])
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
