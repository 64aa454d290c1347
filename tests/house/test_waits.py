"""No await may last for ever: a lint that knows deadlines, and a list of the places that are bounded otherwise."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from house_rules import Source, sources

WAITS = {
    "wait", "get", "join", "acquire", "gather", "shield", "wrap_future", "run_in_executor", "to_thread", "communicate",
    "create_future", "wait_closed",
}
"""Last names of calls that last until somebody else does something; so does what is awaited without being called."""
ALLOWED = {
    # agents, envs
    "agents/leash.py Leash.hold": "what it holds has deadlines of its own, and the watchdog ends it",
    "envs/box.py BoxedSandbox.run": "the lock is held for one command, which has a time limit",
    "envs/box.py BoxedSandbox.snapshot": "as for a command: the lock is held for one, or for a copy that has a limit",
    "envs/box.py BoxedSandbox.restore": "as for a snapshot",
    "envs/calling.py Caller._until": "the limit's timer wakes it",
    "envs/calling.py _contained": "a call of user code: `_until` limits the task that it runs in",
    "envs/calling.py end_strays": "each stray is given the grace time",
    "envs/channel.py Channel.ready": "its caller, `Box.ready`, gives it the deadline of a start",
    "envs/channel.py Channel._ended": "timers end every command: its own limit, then that of the driver's answer",
    "envs/fork.py fork": "what was made is closed, and each host bounds its closing itself",
    "envs/host.py EnvHost.act": "the lock is held for one step or one grading, which have time limits",
    "envs/host.py EnvHost.score": "as for a step",
    "envs/host.py EnvHost.snapshot": "as for a step",
    "envs/host.py EnvHost.close": "freeing is bounded by `close_s`, and must be waited for even when cancelled",
    "envs/tools.py _together": "a single call, bounded by its tool's time limit",
    # inference
    "inference/engine.py LocalEngine.__aenter__": "a few forwards of fixed size, behind a gate that has a deadline",
    "inference/canary.py check_canary": "the caller sets the deadline, and each question is a request, which has one",
    "inference/child.py Child._guarded": "work that the owner asked for and cancels; the process ends with its owner",
    "inference/child.py Child._in_turn": "as above: a load's owner has its deadline, and ends a process that is silent",
    "inference/child.py serve": "for ever on purpose: the end of the line ends the process",
    "inference/copied.py CopiedEngine._load": "within the deadline of `load`",
    "inference/engine.py LocalEngine.__aexit__": "the call in the thread is given its seconds",
    "inference/process.py EngineProcess.stop": "reaping is bounded by `close_s`, and then kills",
    # pipeline
    "pipeline/loop.py Loop._occupied": "a save, or an evaluation: the calls inside have deadlines and names",
    # fakes and kits
    "testing/echo_env.py EchoEnv.step": "the fault `hang`: it is there to be ended by a deadline",
    "testing/env_kit.py _close_comes_early": "a check of the environment's own close, run under a test's time limit",
    "testing/fleet.py Fleet.generate": "simulated: a timer or a breakdown ends it",
    "testing/fleet.py Fleet._slot": "simulated: requests before it end by their timers",
    "testing/sandbox_kit.py _check_limits": "a command that was cancelled, run under a test's time limit",
}
"""Where somebody waits without a deadline in sight, and why it ends all the same."""


class Reading(ast.NodeVisitor):
    """Finds awaits, and entered locks, outside of every `deadline(...)` and `asyncio.timeout(...)` around them."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        """Qualified name of the function, and the line."""
        self._names: list[str] = []
        self._limits: set[str] = set()
        """Names that hold a timeout in the function that is read."""
        self._bounded = False

    @contextmanager
    def _inside(self, name: str, *, function: bool) -> Iterator[None]:
        kept = self._limits, self._bounded
        self._names.append(name)
        if function:
            self._limits, self._bounded = set(), False
        yield
        self._names.pop()
        self._limits, self._bounded = kept

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        with self._inside(node.name, function=False):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        with self._inside(node.name, function=True):
            self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        with self._inside(node.name, function=True):
            self._limits = {
                ast.unparse(target) for n in ast.walk(node) if isinstance(n, ast.Assign)
                for target, value in assigned(n) if is_limit(value)
            }
            self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        kept = self._bounded
        for item in node.items:
            entered = item.context_expr
            if is_limit(entered) or ast.unparse(entered) in self._limits:
                self._bounded = True
            elif not isinstance(entered, ast.Call) and not self._bounded:
                self._find(entered)
            self.visit(entered)
        for statement in node.body:
            self.visit(statement)
        self._bounded = kept

    def visit_Await(self, node: ast.Await) -> None:
        if waits(node.value) and not self._bounded:
            self._find(node)
        self.generic_visit(node)

    def _find(self, node: ast.expr) -> None:
        self.found.append((".".join(self._names), node.lineno))


def assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Target and value of each name that an assignment sets."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def is_limit(node: ast.expr) -> bool:
    """Whether it makes a deadline; `timeout(None)` makes none."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in ("deadline", "timeout"):
        return False
    return not any(map(is_none, node.args))


def waits(node: ast.expr) -> bool:
    """Whether it lasts until somebody else does something, and was given no time."""
    if not isinstance(node, ast.Call):
        return True
    timed = any(k.arg == "timeout" and not is_none(k.value) for k in node.keywords)
    return last_name(node.func) in WAITS and not timed


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def unbounded(source: Source) -> list[tuple[str, int]]:
    reading = Reading()
    reading.visit(source.tree)
    return reading.found


def test_every_await_has_a_deadline_or_a_reason_why_it_ends() -> None:
    found = {
        f"{s.name.removeprefix('src/treadle/')} {function}": line for s in sources() for function, line in unbounded(s)
    }
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}


def test_the_list_of_reasons_names_no_place_that_needs_none() -> None:
    found = {f"{s.name.removeprefix('src/treadle/')} {function}" for s in sources() for function, _ in unbounded(s)}
    assert [place for place in ALLOWED if place not in found] == []


def test_each_place_on_the_list_waits_no_more_often_than_it_did() -> None:
    """A second endless wait must not hide behind the reason of the first."""
    counts = Counter(
        f"{s.name.removeprefix('src/treadle/')} {function}" for s in sources() for function, _ in unbounded(s)
    )
    twice = {place: count for place, count in counts.items() if count > 1}
    assert twice == {"inference/child.py serve": 2}  # the engine that is entered, and the end of the line


@pytest.mark.parametrize(
    ("code", "bounded"),
    [
        ("await self._future", False),
        ("await tasks[0]", False),
        ("await self._event.wait()", False),
        ("await queue.get()", False),
        ("await asyncio.wait({task})", False),
        ("await asyncio.wait({task}, timeout=3 * PATIENCE_S)", True),
        ("await asyncio.wait({task}, timeout=None)", False),
        ("await asyncio.wait({task}, timeout=5)", True),
        ("await asyncio.gather(*calls)", False),
        ("return await loop.run_in_executor(None, work)", False),
        ("await process.communicate()", False),
        ("await self.play(1)", True),
        ("async with self._lock:\n        await self.play(1)", False),
        ("async with asyncio.timeout(5):\n        await self._future", True),
        ("async with asyncio.timeout(None):\n        await self._future", False),
        ("async with deadline('x', 5):\n        await event.wait()", True),
        ("async with deadline('x', 5):\n        pass\n    await event.wait()", False),
        ("what, limit = 'x', asyncio.timeout(5)\n    async with limit, self._lock:\n        await event.wait()", True),
        ("async with self._lock, asyncio.timeout(5):\n        pass", False),
        ("async with deadline('x', 5):\n        async def g():\n            await event.wait()", False),
        ("async with asyncio.TaskGroup() as group:\n        group.create_task(g())", True),
    ],
)
def test_an_endless_await_is_caught(tmp_path: Path, code: str, bounded: bool) -> None:
    file = tmp_path / "planted.py"
    file.write_text(f"async def f(self):\n    {code}\n")
    assert (unbounded(Source(file)) == []) is bounded


def test_a_place_is_named_by_file_class_and_function(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text("class A:\n    async def f(self):\n        await self.x\n")
    assert unbounded(Source(file)) == [("A.f", 3)]
