"""Entry points for scripts, notebooks and the command line: `train`, `evaluate`, `rollout`.

Plain functions that block until the run ended. Where an event loop is running already (a notebook), the run gets a
thread and a loop of its own. Ctrl-C asks the run to stop: the update under way is finished and saved; a second
Ctrl-C cancels it and raises KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from treadle.core.errors import ConfigError
from treadle.core.events import Listener
from treadle.observability import JsonlExport, LiveView, PlainLines, Report
from treadle.pipeline.evaluation import Evaluation
from treadle.recipes.blocking import Brake, block
from treadle.recipes.catalog import BUILT_IN, find
from treadle.recipes.chosen import END, chosen_checkpoint
from treadle.recipes.compose import compose
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe
from treadle.recipes.resume import recipe_of, recipe_to_go_on, require_writable
from treadle.recipes.run import Run, RunResult
from treadle.trajectory.group import Group
from treadle.trajectory.store import read_events

T = TypeVar("T")
VIEWS = ("auto", "live", "lines", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One played task."""

    group: Group
    """A group of one: every segment, reward and the outcome."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, control tokens included."""


def train(
    recipe: Recipe | str | None = None, *, overrides: Mapping[str, object] | None = None, view: str = "auto",
    listeners: Sequence[Listener] = (), resume: str | Path | None = None,
) -> RunResult:
    """Train and write a run folder, or go on with the run in the folder `resume`.

    `recipe` is a `Recipe`, the name of a built-in one, or FILE.py[:FUNCTION]. `overrides` are dotted keys. `view` is
    `live` (redraws a terminal), `lines`, `none`, or `auto`: live in a terminal, else lines. Raises TreadleError with
    one line that says what to do; a run that never started leaves no folder.

    A run that was stopped or killed goes on where it was: nothing is lost, nothing is counted twice. The recipe is
    found by itself; one that was a `Recipe` object must be passed again, and must be the same.
    """
    chosen, folder = _begin(recipe, overrides or {}, resume)
    with _view(view) as shown:
        folder = folder or RunFolder.create(chosen.runs, chosen.name)
        report, export = Report(), JsonlExport(folder.path)
        try:
            heard: list[Listener] = [export, report, *shown, *listeners]
            result = block(lambda brake: _train(chosen, folder, heard, brake, recipe, report=report))
        finally:
            export.close()
            written = _write(report, folder, new=resume is None)
    if view != "none":
        _say("\n".join([*report.summary(), written]))
    return result


def resolve(
    recipe: Recipe | str | None, *, overrides: Mapping[str, object] | None = None, resume: str | Path | None = None,
) -> Recipe:
    """The recipe that `train` would take. Raises ConfigError as it does."""
    return _begin(recipe, overrides or {}, resume)[0]


def evaluate(
    run: Recipe | str | Path, *, checkpoint: str | Path = END, tasks: int | None = None,
    temperature: float | None = None, view: str = "none",
) -> Evaluation:
    """Held-out tasks. `run` is a run folder, whose `checkpoint` (`end`, `best`, `last`, a version or a folder) is
    evaluated, or a recipe, whose untouched model is. `temperature` is the recipe's unless it is given; 0 is greedy.

    Raises ConfigError when the folder is no run, when its recipe cannot be found again, or has no evaluation, and
    KeyboardInterrupt when it was stopped.
    """
    recipe, weights = _restored(run, checkpoint)
    if recipe.evaluation is None:
        raise ConfigError("evaluation=None: the recipe has no evaluation; set evaluation.tasks")
    if tasks is not None and tasks < 1:
        raise ConfigError(f"tasks: got {tasks}, expected >= 1")
    if temperature is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, temperature=temperature))

    async def go(made: Run) -> Evaluation | None:
        return await made.evaluate("evaluation", tasks=tasks)

    with _view(view) as shown:
        return _finished(block(lambda brake: _in_scratch(recipe, weights, shown, brake, go)))


def rollout(
    run: Recipe | str | Path, *, task: int = 0, split: str = "heldout", temperature: float | None = None,
    checkpoint: str | Path = END, listeners: Sequence[Listener] = (),
) -> Played:
    """Play one task once. Raises ConfigError when the taskset has no such task, KeyboardInterrupt when stopped."""
    recipe, weights = _restored(run, checkpoint)

    async def go(made: Run) -> Played | None:
        try:
            found = made.tools.taskset.task(split, task)
        except (IndexError, ValueError) as error:
            raise ConfigError(f"task {task} of split {split!r}: {error}") from error
        group = await made.play(found, temperature=temperature)
        return None if group is None else Played(group=group, decode=made.tools.renderer.decode)

    return _finished(block(lambda brake: _in_scratch(recipe, weights, listeners, brake, go)))


# -- inside ----------------------------------------------------------------------------------------------------


def _ref(recipe: Recipe | str | None) -> str:
    """How to find the recipe again; empty for an object."""
    if not isinstance(recipe, str):
        return ""
    path, colon, function = recipe.partition(":")
    return f"{Path(path).resolve()}{colon}{function}" if path.endswith(".py") else recipe


def _named(ref: str) -> Recipe:
    """The recipe of this name or file; what is neither may have been meant as a run folder."""
    try:
        return find(ref)
    except ConfigError as error:
        if ref.partition(":")[0].endswith(".py"):
            raise
        raise ConfigError(f"{error}; there is no run folder {ref!r} either") from error


def _restored(run: Recipe | str | Path, checkpoint: str | Path) -> tuple[Recipe, Path | None]:
    """The recipe and the weights that are asked for."""
    if isinstance(run, str) and "/" in run and not run.partition(":")[0].endswith(".py"):
        run = Path(run)
    if isinstance(run, Recipe) or (isinstance(run, str) and not Path(run).is_dir()):
        recipe = run if isinstance(run, Recipe) else _named(run)
        if checkpoint in (END, "last"):
            return recipe, None
        if not Path(checkpoint).is_dir():
            raise ConfigError(
                f"checkpoint {str(checkpoint)!r}: there is no such folder, and a recipe has no checkpoints of its own: "
                "name a run folder to choose among its checkpoints"
            )
        return recipe, Path(checkpoint)
    recipe = recipe_of(run)
    return recipe, chosen_checkpoint(RunFolder.existing(run), checkpoint, finish=recipe.pipeline.finish)


def _begin(
    given: Recipe | str | None, overrides: Mapping[str, object], resume: str | Path | None
) -> tuple[Recipe, RunFolder | None]:
    """What is trained, and the folder to go on in."""
    if resume is not None:
        folder = RunFolder.existing(resume)
        require_writable(folder)
        return recipe_to_go_on(folder, given, overrides, say=_warn), folder
    if given is None:
        raise ConfigError(f"train: got no recipe, expected {', '.join(BUILT_IN)}, FILE.py[:FUNCTION], or --resume RUN")
    return (given if isinstance(given, Recipe) else find(given)).changed(overrides), None


async def _train(
    recipe: Recipe, folder: RunFolder, listeners: Sequence[Listener], brake: Brake, given: Recipe | str | None, *,
    report: Report,
) -> RunResult:
    async with compose(recipe, folder=folder, listeners=listeners) as run:
        for event in read_events(folder.database):  # a report tells of the whole run, however often it was resumed
            report.emit(event)
        if not run.past.began:
            run.store.meta("recipe_ref", _ref(given))
        with brake.governs(run.stop):
            return await run.train()


async def _in_scratch(
    recipe: Recipe, weights: Path | None, listeners: Sequence[Listener], brake: Brake,
    work: Callable[[Run], Awaitable[T]],
) -> T:
    """Run `work` on a run whose folder is thrown away."""
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        folder = RunFolder.create(Path(scratch), recipe.name)
        async with compose(recipe, folder=folder, listeners=listeners, weights=weights) as run:
            with brake.governs(run.stop):
                return await work(run)


def _finished(found: T | None) -> T:
    """What was found. Raises KeyboardInterrupt where a stop came first."""
    if found is None:
        raise KeyboardInterrupt
    return found


def _write(report: Report, folder: RunFolder, *, new: bool) -> str:
    """Write the report, or remove the folder of a new run that never started; a line that says where it is."""
    if not report.started:
        if new:
            folder.discard()
        return ""
    try:
        return f"report: {report.write(folder.path)}"
    except OSError as error:  # the run is over and its record is the database: this must not hide how it ended
        return f"report: not written, {error}"


@contextlib.contextmanager
def _view(view: str) -> Iterator[list[Listener]]:
    if view not in VIEWS:
        raise ConfigError(f"view: got {view!r}, expected one of {', '.join(VIEWS)}")
    if view == "live" or (view == "auto" and sys.stdout.isatty()):
        with LiveView() as live:
            yield [live]
    else:
        yield [] if view == "none" else [PlainLines(_say)]


def _warn(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"treadle: {line}\n")


def _say(line: str) -> None:
    """A line on standard output; nothing where nobody listens any more."""
    code = sys.stdout.encoding or "utf-8"
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(line.encode(code, "backslashreplace").decode(code) + "\n")
        sys.stdout.flush()
