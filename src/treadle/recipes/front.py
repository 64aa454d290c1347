"""Entry points for scripts, notebooks and the command line: `train`, `evaluate`, `rollout`.

Plain functions that block until the run ended. Where an event loop is running already (a notebook), the run gets a
thread and a loop of its own. Ctrl-C asks the run to stop: the update under way is finished and saved; a second
Ctrl-C ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from treadle.core.config import read_toml
from treadle.core.errors import ConfigError
from treadle.core.events import Listener
from treadle.observability import JsonlExport, LiveView, PlainLines, Report
from treadle.pipeline.evaluation import Evaluation
from treadle.recipes.catalog import find
from treadle.recipes.compose import Run, RunResult, compose
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe
from treadle.trajectory.group import Group
from treadle.trajectory.store import read_meta

T = TypeVar("T")
@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One played task."""

    group: Group
    """A group of one: every segment, reward and the outcome."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, control tokens included."""


VIEWS = ("auto", "live", "lines", "none")


def train(
    recipe: Recipe | str, *, overrides: Mapping[str, object] | None = None, view: str = "auto",
    listeners: Sequence[Listener] = (),
) -> RunResult:
    """Train and write a run folder.

    `recipe` is a `Recipe`, the name of a built-in one, or FILE.py[:FUNCTION]. `overrides` are dotted keys. `view` is
    `live` (redraws a terminal), `lines`, `none`, or `auto`: live in a terminal, else lines. Raises TreadleError with
    one line that says what to do.
    """
    chosen = _recipe(recipe).changed(overrides or {})
    folder = RunFolder.create(chosen.runs, chosen.name)
    report, export = Report(), JsonlExport(folder.path)
    with _view(view) as shown:
        try:
            result = _block(lambda: _train(chosen, folder, [export, report, *shown, *listeners], _ref(recipe)))
        finally:
            export.close()
            path = report.write(folder.path)
    if view != "none":
        _say("\n".join([*report.summary(), f"report: {path}"]))
    return result


def evaluate(
    run: Recipe | str | Path, *, checkpoint: str | Path = "last", tasks: int | None = None, view: str = "none",
) -> Evaluation:
    """Held-out tasks. `run` is a run folder, whose `checkpoint` (`last`, `version-N` or a folder) is evaluated, or a
    recipe, whose untouched model is.

    Raises ConfigError when the folder is no run, when its recipe cannot be found again, or has no evaluation.
    """
    recipe, weights = _restored(run, checkpoint)
    if recipe.evaluation is None:
        raise ConfigError("evaluation=none: the recipe has no evaluation; set evaluation.tasks")

    async def go(made: Run) -> Evaluation | None:
        return await made.evaluate("evaluation", tasks=tasks)

    with _view(view) as shown:
        found = _block(lambda: _in_scratch(recipe, weights, shown, go))
    if found is None:
        raise KeyboardInterrupt
    return found


def rollout(
    run: Recipe | str | Path, *, task: int = 0, split: str = "heldout", temperature: float | None = None,
    checkpoint: str | Path = "last", listeners: Sequence[Listener] = (),
) -> Played:
    """Play one task once. Raises ValueError or IndexError when the taskset has no such task."""
    recipe, weights = _restored(run, checkpoint)

    async def go(made: Run) -> Played:
        group = await made.play(made.tools.taskset.task(split, task), temperature=temperature)
        return Played(group=group, decode=made.tools.renderer.decode)

    return _block(lambda: _in_scratch(recipe, weights, listeners, go))


def recipe_of(run: Path) -> Recipe:
    """The recipe that a run folder was made with. Raises ConfigError when it cannot be found again."""
    folder = RunFolder(run)
    if not folder.database.is_file():
        raise ConfigError(f"{run}: got a folder without run.db, expected a run folder such as runs/shell-...")
    ref = read_meta(folder.database).get("recipe_ref", "")
    if not ref:
        raise ConfigError(f"{run}: it was trained from a Recipe object; pass that recipe and the checkpoint's folder")
    recipe = find(ref)
    held = recipe.flat()
    return recipe.changed({key: value for key, value in read_toml(folder.recipe).items() if held.get(key) != value})


# -- inside ----------------------------------------------------------------------------------------------------


def _recipe(recipe: Recipe | str) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else find(recipe)


def _ref(recipe: Recipe | str) -> str:
    """How to find the recipe again; empty for an object."""
    if isinstance(recipe, Recipe):
        return ""
    path, colon, function = recipe.partition(":")
    return f"{Path(path).resolve()}{colon}{function}" if path.endswith(".py") else recipe


def _restored(run: Recipe | str | Path, checkpoint: str | Path) -> tuple[Recipe, Path | None]:
    """The recipe and the weights that are asked for."""
    if isinstance(run, Recipe) or (isinstance(run, str) and not Path(run).is_dir()):
        given = isinstance(checkpoint, Path) or checkpoint != "last"
        return _recipe(run), Path(checkpoint) if given else None
    folder = RunFolder(Path(run))
    recipe = recipe_of(folder.path)
    if checkpoint == "last":
        if folder.newest_checkpoint is None:
            raise ConfigError(f"{run}: it has no checkpoint yet; give --checkpoint FOLDER")
        return recipe, folder.newest_checkpoint
    inside = folder.checkpoints / str(checkpoint)
    return recipe, inside if inside.is_dir() else Path(checkpoint)


async def _train(recipe: Recipe, folder: RunFolder, listeners: Sequence[Listener], ref: str) -> RunResult:
    async with compose(recipe, folder=folder, listeners=listeners) as run:
        run.store.meta("recipe_ref", ref)
        run.store.meta("model", recipe.model)
        with _interruptible(run):
            return await run.train()


async def _in_scratch(
    recipe: Recipe, weights: Path | None, listeners: Sequence[Listener], work: Callable[[Run], Awaitable[T]]
) -> T:
    """Run `work` on a run whose folder is thrown away."""
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        folder = RunFolder.create(Path(scratch), recipe.name)
        async with compose(recipe, folder=folder, listeners=listeners, weights=weights) as run:
            with _interruptible(run):
                return await work(run)


def _block(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work`, on a fresh loop; in a thread of its own where a loop is running already."""

    async def whole() -> T:
        return await work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle-run") as own:
        return own.submit(asyncio.run, whole()).result()


@contextlib.contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) stops the run, the second ends the process's work at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    asked = False

    def interrupted(number: signal.Signals) -> None:
        nonlocal asked
        if asked:
            loop.remove_signal_handler(number)
            signal.raise_signal(number)
            return
        asked = True
        run.stop()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, interrupted, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _view(view: str) -> Iterator[list[Listener]]:
    if view not in VIEWS:
        raise ConfigError(f"view: got {view!r}, expected one of {', '.join(VIEWS)}")
    if view == "live" or (view == "auto" and sys.stdout.isatty()):
        with LiveView() as live:
            yield [live]
    else:
        yield [] if view == "none" else [PlainLines(_say)]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
