"""Typed configs from loose overrides: the machinery, not the configs.

A config is a frozen dataclass whose fields are plain values, other config dataclasses (sections) or named objects. It
stands beside the class it configures; a recipe nests them. What a person writes, `--set learner.lr=3e-5` or a TOML
file, is a map from dotted keys to values:

    config --apply(overrides)--> config of the same type, every section rebuilt at most once, its checks run once
    config --flatten-->          dotted key to plain value: what a dry run prints and what `apply` takes back

An object that can only be printed by its name, such as a taskset, keeps its place when that name comes back.

Text is read by the field's type; typed values (from TOML or Python) must fit it, except that an int fits a float. A
field whose type stands in `names` holds an object that is chosen by name: a credit rule, a loss, a schedule. Its own
fields, when it is a dataclass, are keys below it: `rule=grpo`, `rule.std=false`. A field that is a tuple of such a type
holds several, in order: `filters=a,b`, `filters.a.most=3`.

Errors are ConfigError, one line: the key, what was given, what was expected. An unknown key gets the nearest key and
the keys that the section has.
"""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from treadle.core.config_values import Missing, fit, members, origin_of, say
from treadle.core.errors import ConfigError

Names = Mapping[Any, Mapping[str, Callable[[], object]]]
"""Type of a field to the names it may be set to, each with a factory."""
Config = TypeVar("Config")


def apply(config: Config, overrides: Mapping[str, object], *, names: Names | None = None) -> Config:
    """The config with these values set. Keys are dotted; a nested mapping is the same as dotted keys.

    Raises ConfigError for an unknown key, a value of the wrong type, an unknown name, or values that contradict.
    """
    root = _Node()
    _plant(root, overrides)
    known = flatten(config, names=names)
    built: Config = _Builder(names or {}, list(known)).section(config, root, "")
    return built


def flatten(config: object, *, names: Names | None = None) -> dict[str, object]:
    """Dotted key to plain value (None, bool, int, float, str, list), in the order of the fields."""
    out: dict[str, object] = {}
    _flatten(config, "", names or {}, out)
    return out


def unset(config: object, key: str, *, names: Names | None = None) -> dict[str, object]:
    """What the field at a dotted key, and what is below it, flatten to when nobody sets them.

    Raises ConfigError when there is no such field, or it has no default.
    """
    above, _, name = key.rpartition(".")
    owner = _at(config, above)
    found = [f for f in fields(owner) if f.name == name] if _is_section(owner) else []
    for f in found:
        value = f.default if f.default_factory is MISSING else f.default_factory()
        if value is not MISSING:
            out: dict[str, object] = {}
            _flatten_field(key, _hints(type(owner))[name], value, names or {}, out)
            return out
    raise ConfigError(f"{key}: it has no default, expected a value")


def to_toml(config: object, *, names: Names | None = None) -> str:
    """`flatten` as TOML that `read_toml` and `apply` take back; None is written as the string none."""
    flat = flatten(config, names=names)
    chosen = tuple(f"{key}." for key in flat if any(other.startswith(f"{key}.") for other in flat))
    return "".join(
        f"{json.dumps(key) if key.startswith(chosen) else key} = {_toml(value)}\n" for key, value in flat.items()
    )


def read_toml(path: Path) -> dict[str, object]:
    """Overrides from a TOML file. Raises ConfigError when it cannot be read or parsed."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_sets(sets: Iterable[str]) -> dict[str, object]:
    """Overrides from `key=value` texts; a later one wins. Raises ConfigError for a text without `=`."""
    out: dict[str, object] = {}
    for text in sets:
        key, found, value = text.partition("=")
        if not found or not key.strip():
            raise ConfigError(f"got {text!r}, expected key=value")
        out[key.strip()] = value.strip()
    return out


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing."""
    words = list(known)
    near = difflib.get_close_matches(given, words, n=1, cutoff=0.6)
    alike = [word for word in words if word.rpartition(".")[2] == given.rpartition(".")[2]]
    near = sorted(alike, key=lambda word: word.count("."))[:1] if "." not in given and alike else near or alike
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass(slots=True)
class _Node:
    """Overrides of one key: its own value, if one was given, and those below it."""

    value: object = Missing.VALUE
    below: dict[str, _Node] = field(default_factory=dict)

    def rest(self) -> str:
        """What follows in the first key that was given here or below."""
        if self.value is not Missing.VALUE or not self.below:
            return ""
        name, node = next(iter(self.below.items()))
        return f".{name}{node.rest()}"


def _plant(node: _Node, overrides: Mapping[str, object]) -> None:
    for key, value in overrides.items():
        at = node
        for part in str(key).split("."):
            at = at.below.setdefault(part, _Node())
        if isinstance(value, Mapping):
            _plant(at, value)
        else:
            at.value = value


class _Builder:
    """Rebuilds a config under a tree of overrides."""

    def __init__(self, names: Names, known: list[str]) -> None:
        self._names = names
        self._known = known

    def section(self, config: Any, node: _Node, key: str) -> Any:
        """The dataclass `config` with the values below `node`."""
        if node.value is not Missing.VALUE:
            raise _wrong(key, node.value, f"a section with keys {', '.join(_hints(type(config)))}")
        if not node.below:
            return config
        hints = _hints(type(config))
        changes = {}
        for name, below in node.below.items():
            path = f"{key}.{name}" if key else name
            if name not in hints:
                given, where = f"{path}{below.rest()}", f"keys of {key}" if key else "keys"
                known = [*self._known, *(f"{key}.{own}" for own in hints if key)]
                raise ConfigError(
                    f"unknown key {given!r}{did_you_mean(given, known)} ({where}: {', '.join(sorted(hints))})"
                )
            changes[name] = self._field(hints[name], getattr(config, name), below, path)
        try:
            return replace(config, **changes)
        except ValueError as error:
            raise ConfigError(f"{key or type(config).__name__}: {error}") from error
        except ConfigError as error:
            raise ConfigError(_placed(key, str(error))) from error

    def _field(self, hint: Any, held: Any, node: _Node, key: str) -> Any:
        several = _several(hint, self._names)
        if several is not None:
            return self._list(several, held, node, key)
        table = _table(hint, self._names)
        if table is None and _is_section(held) and not (_optional(hint) and fit(type(None), node.value) is None):
            return self.section(held, node, key)
        if node.value is not Missing.VALUE and not (isinstance(node.value, str) and node.value == _simple(held)):
            held = self._chosen(table, hint, node.value, key) if table is not None else self.read(hint, node.value, key)
        if not node.below:
            return held
        if table is not None:
            _refuse_foreign(table, held, node, key)
        if _is_section(held):
            return self.section(held, _Node(below=node.below), key)
        if held is None and (section := _optional_section(hint)) is not None:
            return self.section(_default(section, key), _Node(below=node.below), key)
        if origin_of(hint) in (dict, Mapping):
            value_type = (*typing.get_args(hint), Any, Any)[1]
            return {**held, **{n: self.read(value_type, b.value, f"{key}.{n}") for n, b in node.below.items()}}
        raise ConfigError(f"unknown key {key + '.' + next(iter(node.below))!r}: {key} is a {say(hint)}, not a section")

    def _list(self, table: Mapping[str, Callable[[], object]], held: Any, node: _Node, key: str) -> tuple[Any, ...]:
        """Objects that are chosen by name, with the fields of each below its name."""
        if node.value is not Missing.VALUE:
            held = self._named(table, held, node.value, key)
        chosen = {_name(one): one for one in held}
        for name, below in node.below.items():
            if not _is_section(chosen.get(name)):
                raise ConfigError(
                    f"unknown key {f'{key}.{name}{below.rest()}'!r}{did_you_mean(name, chosen)} "
                    f"({key}: {', '.join(chosen)})"
                )
            chosen[name] = self.section(chosen[name], below, f"{key}.{name}")
        return tuple(chosen.values())

    def _named(
        self, table: Mapping[str, Callable[[], object]], held: Any, value: object, key: str
    ) -> tuple[Any, ...]:
        """The objects of these names: those that are held already stay as they are."""
        names = fit(tuple[str, ...], value)
        if names is Missing.VALUE:
            if isinstance(value, tuple):
                return value
            raise _wrong(key, value, f"a list of names ({', '.join(table)})")
        if len(set(names)) != len(names):
            raise ConfigError(f"{key}: got {value!r}, expected each name once")
        known = {_name(one): one for one in held}
        return tuple(known[name] if name in known else self._chosen(table, str, name, key) for name in names)

    def _chosen(self, table: Mapping[str, Callable[[], object]], hint: Any, value: object, key: str) -> object:
        if not isinstance(value, str):
            return value
        if _optional(hint) and fit(type(None), value) is None:
            return None
        if value not in table:
            raise ConfigError(f"{key}: unknown name {value!r}{did_you_mean(value, table)} (names: {', '.join(table)})")
        return table[value]()

    def read(self, hint: Any, value: object, key: str) -> Any:
        """`value` as the type `hint` says."""
        for member in members(hint):
            found = fit(member, value)
            if found is not Missing.VALUE:
                return found
        section = _optional_section(hint)
        if section is not None and _optional(hint):
            keys = ", ".join(f"{key}.{name}" for name in _hints(section))
            raise _wrong(key, value, f"none, or one of its keys to be set: {keys}")
        raise _wrong(key, value, say(hint))


# -- fields ----------------------------------------------------------------------------------------------------


def _hints(kind: type) -> dict[str, Any]:
    """Settable fields of a dataclass and their types."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.init and not f.name.startswith("_")}


def _refuse_foreign(table: Mapping[str, Callable[[], object]], held: object, node: _Node, key: str) -> None:
    """Raise ConfigError for a key that only other objects of the table have, naming those."""
    own, what = _hints(type(held)) if _is_section(held) else {}, "none" if held is None else _name(held)
    for name, below in node.below.items():
        if name in own or did_you_mean(name, own):
            continue
        others = [one for one, make in table.items() if _is_section(made := make()) and name in _hints(type(made))]
        if others:
            raise ConfigError(
                f"unknown key {f'{key}.{name}{below.rest()}'!r}: {key} is {what}, which has no {name}; set "
                f"{key}={' or '.join(others)}, or leave it out"
            )


def _is_section(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _optional(hint: Any) -> bool:
    return type(None) in members(hint)


def _optional_section(hint: Any) -> type | None:
    return next((m for m in members(hint) if isinstance(m, type) and is_dataclass(m)), None)


def _default(section: type, key: str) -> object:
    try:
        return section()
    except TypeError as error:
        raise ConfigError(f"{key} is none and has no defaults to start from: {error}") from error


def _table(hint: Any, names: Names) -> Mapping[str, Callable[[], object]] | None:
    return next((names[m] for m in members(hint) if m in names), None)


def _several(hint: Any, names: Names) -> Mapping[str, Callable[[], object]] | None:
    """The table of `tuple[kind, ...]` where `kind` is chosen by name."""
    args = typing.get_args(hint)
    return names.get(args[0]) if origin_of(hint) is tuple and args[1:] == (Ellipsis,) else None


def _placed(key: str, said: str) -> str:
    """What a section said about itself, with the key under which it stands here."""
    above, _, name = key.rpartition(".")
    if not key or said.startswith(key):
        return said
    return f"{above}.{said}" if above and said.startswith(f"{name}.") else f"{key}: {said}"


def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{key}: got {value!r} ({type(value).__name__}), expected {expected}")


def _flatten(config: Any, key: str, names: Names, out: dict[str, object]) -> None:
    for name, hint in _hints(type(config)).items():
        _flatten_field(f"{key}.{name}" if key else name, hint, getattr(config, name), names, out)


def _flatten_field(path: str, hint: Any, value: Any, names: Names, out: dict[str, object]) -> None:
    if _several(hint, names) is not None:
        out[path] = [_name(one) for one in value]
        for one in filter(_is_section, value):
            _flatten(one, f"{path}.{_name(one)}", names, out)
        return
    table = _table(hint, names)
    if table is not None and value is not None:
        out[path] = next((n for n, make in table.items() if make is type(value)), None) or _name(value)
    if _is_section(value):
        _flatten(value, path, names, out)
    elif table is None or value is None:
        out.update(_plain(path, value))


def _at(config: Any, key: str) -> Any:
    """What stands at a dotted key; None where nothing does."""
    for part in key.split(".") if key else ():
        several = config if isinstance(config, tuple) else ()
        config = next((one for one in several if _name(one) == part), None if several else getattr(config, part, None))
    return config


def _plain(path: str, value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return {f"{path}.{name}": _simple(item) for name, item in value.items()}
    return {path: _simple(value)}


def _simple(value: object) -> object:
    if isinstance(value, Enum):
        return _simple(value.value)
    if isinstance(value, tuple | list):
        return [_simple(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, Path) else _name(value)


def _name(value: object) -> str:
    """What an object calls itself: `name`, else what it or its class is called. The same in every process."""
    own = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return own if isinstance(own, str) else type(value).__qualname__


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps("none" if value is None else value, ensure_ascii=False)
