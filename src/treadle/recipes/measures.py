"""What a run measures of its versions, and which of them it ends with.

Held-out tasks are played before and after. What chooses the best version is `validation`, where the recipe has one,
and the held-out tasks between the updates where it has none. A run with `pipeline.finish=best` takes the weights of the
best version back when training has gone on to a worse one: the held-out tasks are played with those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from treadle.pipeline.best import VALIDATION, best_of
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.evaluation import Evaluation, EvaluationConfig
from treadle.pipeline.ledger import Ledger
from treadle.recipes.chosen import held_best
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe

Play = Callable[[EvaluationConfig, str, int, int | None], Awaitable[Evaluation | None]]
"""Plays an evaluation under the weights of now: its tasks, label, update, and how many tasks; None when a stop came."""
Restore = Callable[[Path], Awaitable[None]]
"""Takes the weights of a checkpoint, for learner and engine."""


class Measures:
    """Evaluates, keeps the best checkpoint, and goes back to it."""

    def __init__(
        self, recipe: Recipe, folder: RunFolder, *, ledger: Ledger, version: Callable[[], int], play: Play,
        restore: Restore, past: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self.found = {one.label: one for one in map(Evaluation.of, past)}
        """Evaluations by label, in the order in which they were made."""
        self.saver: Checkpoints | None = None
        """Saves what trains now; None before anything does."""
        self._recipe = recipe
        self._folder = folder
        self._ledger = ledger
        self._version = version
        self._play = play
        self._restore = restore

    async def held_out(self, label: str, *, update: int = 0, tasks: int | None = None) -> Evaluation | None:
        """Held-out tasks; None when the recipe has none, or a stop came first."""
        return await self._evaluate(self._recipe.evaluation, label, update=update, tasks=tasks)

    async def stage(self, label: str, *, update: int = 0) -> None:
        """Held-out tasks after a stage."""
        found = await self.held_out(label, update=update)
        if self._recipe.validation is None:
            await self._keep(found, update=update)

    async def between(self, update: int) -> None:
        """Whatever chooses, after an update."""
        if self._recipe.validation is None:
            await self.stage(f"update-{update}", update=update)
        else:
            await self.validate(update)

    async def validate(self, update: int) -> None:
        """The tasks of `validation`, where the recipe has some."""
        if self._recipe.pipeline.evaluate_every and self._recipe.validation is not None:
            found = await self._evaluate(self._recipe.validation, f"{VALIDATION}-{update}", update=update)
            await self._keep(found, update=update)

    async def take_back(self) -> None:
        """With `finish=best`, the weights of the best version, if the version of now is another."""
        best, path, last = best_of(self.found.values()), self.best, self._version()
        if self._recipe.pipeline.finish != "best" or best is None or path is None or best.version == last:
            return
        await self._restore(path)
        if self.saver is not None:
            self.saver.newest = path  # it is saved
        self._ledger.tell("run.took_back", {
            "version": best.version, "from_version": last, "label": best.label, "solved": best.overall.solved,
            "total": best.overall.total,
        })

    @property
    def best(self) -> Path | None:
        """The checkpoint of the best version; None where nothing chooses, or none is there."""
        return held_best(self._folder, self.found.values()) if self._recipe.pipeline.evaluate_every else None

    async def _evaluate(
        self, config: EvaluationConfig | None, label: str, *, update: int, tasks: int | None = None
    ) -> Evaluation | None:
        """A label that was evaluated already is not evaluated again."""
        if label in self.found or config is None:
            return self.found.get(label)
        found = await self._play(config, label, update, tasks)
        if found is not None:
            self.found[label] = found
        return found

    async def _keep(self, found: Evaluation | None, *, update: int) -> None:
        """Where evaluations choose, and none did better than this one, the checkpoint of its version stays."""
        if found is None or self.saver is None or not self._recipe.pipeline.evaluate_every:
            return
        if found is not best_of(self.found.values()) or found.version != self._version():
            return
        if await self.saver.keep_best(update=update):
            self._ledger.tell("checkpoint.best", {
                "label": found.label, "update": update, "version": found.version, "solved": found.overall.solved,
                "total": found.overall.total, "solved_share": found.overall.share, "path": str(self.saver.best),
            })
