"""House rules that a machine can see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house_rules import FLOOR, ROOT, Source, sources

DRAWERS = {"utils", "util", "common", "base", "helpers", "misc"}
MOST_LINES, MOST_FUNCTION, MOST_PARAMETERS = 500, 80, 9
FRONT_DOORS = {"cli"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, Function))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call))


def own_calls(function: Function) -> Iterator[ast.Call]:
    """Calls of a function itself, without those of the fakes that are defined in it."""
    inner = {c for f in functions(function) if f is not function for c in calls(f)}
    return (c for c in calls(function) if c not in inner)


def handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler))


def catches(handler: ast.ExceptHandler) -> set[str]:
    """Names of what a handler catches; an empty name for a bare except."""
    kind = handler.type
    parts = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {ast.unparse(part).rpartition(".")[2] if part else "" for part in parts}


def at(source: Source, node: ast.stmt | ast.expr | ast.ExceptHandler) -> str:
    return f"{source.name}:{node.lineno}"


def commented(source: Source, line: int, word: str = "") -> bool:
    """Whether a comment (with this word) stands on the line, the one before or the one after."""
    near = source.lines[max(0, line - 2) : line + 1]
    return any(word in text.partition("#")[2] for text in near if "#" in text)


def loose_tasks(source: Source) -> list[str]:
    """Tasks that are made outside a TaskGroup; a comment that names the owner excuses one."""
    groups = {
        ast.unparse(item.optional_vars)
        for n in ast.walk(source.tree)
        if isinstance(n, ast.AsyncWith)
        for item in n.items
        if item.optional_vars is not None and "TaskGroup" in ast.unparse(item.context_expr)
    }

    def owned(name: str) -> bool:
        owner = name.rpartition(".")[0]
        declared = rf"\b{re.escape(owner.rpartition('.')[2])}\s*[:=][^\n]*TaskGroup"
        return bool(owner) and (owner in groups or re.search(declared, source.text) is not None)

    made = [(c, ast.unparse(c.func)) for c in calls(source.tree)]
    return [
        f"{at(source, c)} {name}"
        for c, name in made
        if (name.endswith("ensure_future") or (name.endswith("create_task") and not owned(name)))
        and not commented(source, c.lineno, word="own")
    ]


def endless_waits(source: Source) -> list[str]:
    """Thin: calls that may wait for ever, take a timeout and were given none; a comment beside one excuses it."""
    waiting = re.compile(r"(thread|process|proc|future|condition|event|queue|child|writer|worker)s?\b")
    bounded = {
        inner
        for n in ast.walk(source.tree)
        if isinstance(n, ast.AsyncWith) and any("timeout" in ast.unparse(i.context_expr) for i in n.items)
        for inner in calls(n)
    }
    return [
        f"{at(source, c)} {ast.unparse(c)}"
        for c in calls(source.tree)
        if isinstance(c.func, ast.Attribute)
        and c.func.attr in {"wait", "join", "acquire", "result", "get"}
        and not (c.func.attr == "result" and "concurrent" not in source.text)
        and not (c.args or c.keywords or c in bounded or commented(source, c.lineno))
        and waiting.search(ast.unparse(c.func.value).lower())
    ]


def deaf_waits(source: Source) -> list[str]:
    """`asyncio.wait_for` loses a cancellation that comes in the moment its work ends (Python 3.11): the task goes on,
    and who cancelled it waits for ever. `asyncio.timeout` passes it on."""
    return [at(source, c) for c in calls(source.tree) if ast.unparse(c.func) == "asyncio.wait_for"]


def planted(folder: Path, code: str) -> Source:
    file = folder / "planted.py"
    file.write_text(code)
    return Source(file)


def test_no_file_is_a_drawer() -> None:
    assert [s.name for s in sources() if DRAWERS & {s.path.stem, *s.path.relative_to(ROOT).parts}] == []


def test_modules_open_with_their_model_in_prose() -> None:
    assert [s.name for s in sources() if not ast.get_docstring(s.tree)] == []


def test_files_have_a_size() -> None:
    assert [f"{s.name}: {len(s.lines)}" for s in sources() if len(s.lines) > MOST_LINES] == []


def test_functions_have_a_size_and_few_parameters() -> None:
    def size(f: Function) -> int:
        return (f.end_lineno or f.lineno) - f.lineno + 1

    def takes(f: Function) -> int:
        return len(f.args.posonlyargs + f.args.args + f.args.kwonlyargs)

    every = [(s, f) for s in sources() for f in functions(s.tree)]
    assert [f"{at(s, f)} {f.name}: {size(f)} lines" for s, f in every if size(f) > MOST_FUNCTION] == []
    assert [f"{at(s, f)} {f.name}: {takes(f)} parameters" for s, f in every if takes(f) > MOST_PARAMETERS] == []


def test_only_the_front_door_prints_and_nobody_probes() -> None:
    named = [(s, c, c.func.id) for s in sources() for c in calls(s.tree) if isinstance(c.func, ast.Name)]
    assert [at(s, c) for s, c, name in named if name == "hasattr"] == []
    assert [at(s, c) for s, c, name in named if name == "print" and s.room not in FRONT_DOORS] == []


def test_catching_everything_gives_its_reason() -> None:
    wide = [(s, h) for s in sources() for h in handlers(s.tree) if catches(h) & {"Exception", "BaseException", ""}]
    assert [at(s, h) for s, h in wide if not commented(s, h.lineno)] == []


def test_cancellation_is_never_swallowed() -> None:
    """Who catches it raises it again, or says beside the handler why the wait ends here."""
    wide = [(s, h) for s in sources() for h in handlers(s.tree) if catches(h) & {"CancelledError", "BaseException", ""}]
    quiet = [(s, h) for s, h in wide if not any(isinstance(inner, ast.Raise) for inner in ast.walk(h))]
    assert [at(s, h) for s, h in quiet if not commented(s, h.lineno)] == []


def test_tasks_have_owners() -> None:
    assert [line for s in sources() for line in loose_tasks(s)] == []


@pytest.mark.parametrize(
    ("code", "owned"),
    [
        ("async with asyncio.TaskGroup() as group:\n        group.create_task(g())", True),
        ("asyncio.create_task(g())", False),
        ("asyncio.ensure_future(g())", False),
        ("asyncio.get_running_loop().create_task(g())", False),
        ("self._tasks.create_task(g())", False),
        ("t = asyncio.create_task(g())  # owned by this call: cancelled below", True),
    ],
)
def test_a_task_without_an_owner_is_caught(tmp_path: Path, code: str, owned: bool) -> None:
    assert (loose_tasks(planted(tmp_path, f"async def f(self):\n    {code}")) == []) is owned


def test_no_wait_is_without_a_deadline() -> None:
    assert [line for s in sources() for line in endless_waits(s)] == []


@pytest.mark.parametrize(
    ("code", "bounded"),
    [
        ("thread.join()", False),
        ("thread.join(5)", True),
        ("self._changed_event.wait()", False),
        ("await queue.get()", False),
        ("async with asyncio.timeout(5):\n        await event.wait()", True),
        ("text.join(parts)", True),
    ],
)
def test_a_wait_without_a_deadline_is_caught(tmp_path: Path, code: str, bounded: bool) -> None:
    assert (endless_waits(planted(tmp_path, f"async def f(self):\n    {code}")) == []) is bounded


def test_no_wait_is_deaf_to_a_cancellation(tmp_path: Path) -> None:
    assert [line for s in sources() for line in deaf_waits(s)] == []
    assert deaf_waits(planted(tmp_path, "async def f(x):\n    await asyncio.wait_for(x, 5)")) != []


def test_no_marks_are_left() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [f"{s.name}:{n}" for s in sources() for n, line in enumerate(s.lines, 1) if marks.search(line)] == []


def test_every_test_is_a_sentence_that_asserts_and_does_not_sleep() -> None:
    tests = [
        (f"{path.name}:{f.lineno} {f.name}", f)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for f in functions(ast.parse(path.read_text(encoding="utf-8")))
        if f.name.startswith("test_")
    ]
    asserts = re.compile(r"\bassert\b|raises|warns|check_|assert_")
    assert [name for name, f in tests if not asserts.search(ast.unparse(f))] == []
    sleeps = [(name, ast.unparse(c)) for name, f in tests for c in own_calls(f) if _sleeps(c)]
    assert sleeps == []


def test_test_files_mirror_rooms_and_have_names_of_their_own() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    kinds = {*FLOOR, "house", "parity", "e2e", "examples", "bench"}
    assert {p.relative_to(ROOT / "tests").parts[0] for p in files} <= kinds
    names = [p.name for p in files]
    assert sorted(names) == sorted(set(names))


def _sleeps(call: ast.Call) -> bool:
    return ast.unparse(call.func) in {"time.sleep", "asyncio.sleep"} and ast.unparse(call) != "asyncio.sleep(0)"
