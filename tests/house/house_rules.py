"""Reads the library's own source: files, rooms, floors and imports. Shared by the house tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "treadle"
FLOORS = (
    ("core",),
    ("trajectory",),
    ("envs", "rendering", "models", "algorithms"),
    ("agents", "inference", "learner"),
    ("pipeline",),
    ("cluster", "observability"),
    ("recipes", "testing"),
    ("cli",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@dataclass(frozen=True)
class Source:
    """One parsed file of the library."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name

    @property
    def room(self) -> str:
        """Name of the room; empty for the files of the package itself."""
        parts = self.path.relative_to(SRC).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.path)

    @property
    def package(self) -> list[str]:
        """Dotted name of the package that relative imports start from."""
        return ["treadle", *self.path.relative_to(SRC).parts[:-1]]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def sources() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted(SRC.rglob("*.py")))


def imported(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import, wherever it stands: absolute, relative, aliased, by importlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*stem, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__", "find_spec"}:
            yield from ((node.lineno, _absolute(name, package)) for name in _texts(node))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _texts(node: ast.Call) -> list[str]:
    values = [*node.args, *(k.value for k in node.keywords)][:1]
    return [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def _absolute(name: str, package: list[str]) -> str:
    if not name.startswith("."):
        return name
    level = len(name) - len(name.lstrip("."))
    return ".".join([*package[: len(package) - level + 1], name.lstrip(".")])


def crossings(source: Source) -> list[str]:
    """Imports that go upwards or sideways."""
    found = []
    for line, name in imported(source.tree, source.package):
        parts = name.split(".")
        if parts[0] != "treadle" or not source.room:
            continue
        target = parts[1] if len(parts) > 1 else ""
        if target == source.room:
            continue
        if target not in FLOOR or FLOOR[target] >= FLOOR[source.room]:
            found.append(f"{source.name}:{line} {source.room} -> {target or 'the public namespace'}")
    return found
