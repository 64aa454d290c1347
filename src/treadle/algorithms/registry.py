"""From the name in a recipe to a rule, a loss or an aggregation; a wrong name is answered with the nearest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from treadle.core.errors import ConfigError

T = TypeVar("T")


def build(kind: str, table: Mapping[str, type[T]], name: str, params: Mapping[str, Any]) -> T:
    """`table[name](**params)`. Raises ConfigError naming `kind`, what was got and what was probably meant."""
    if name not in table:
        raise ConfigError(f"{kind}: unknown name {name!r}{meant(name, table)}; known: {', '.join(sorted(table))}")
    cls = table[name]
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for key in params:
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{kind} {name}: unknown setting {key!r}{meant(key, known)}; known: {listed}")
    try:
        return cls(**params)
    except TypeError as error:
        raise ConfigError(f"{kind} {name}: {error}") from None


def meant(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
