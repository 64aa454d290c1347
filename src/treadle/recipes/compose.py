"""From a recipe to a run: every room's object is made here, once, and handed to the one that needs it.

    compose(recipe) -> Run      the run folder is there, the model is loaded, nothing has started

A folder that holds a run already makes a run that goes on with it.

What can fail because of this machine (sandbox, weights, template, disk) or because the parts of a recipe do not fit
the model and the tasks fails here, before any time is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from treadle.core import compute
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError, EnvError, one_line
from treadle.core.events import Listener
from treadle.core.ports import Clock
from treadle.envs.cassette import Cassette, CassetteConfig
from treadle.envs.env import Env
from treadle.envs.host import EnvHost, Host
from treadle.envs.recorded import FallbackHost, RecordedHost, RecordingHost
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.task import Taskset, size_of
from treadle.models.policy import Policy
from treadle.recipes.folder import RunFolder
from treadle.recipes.memory import plan_memory
from treadle.recipes.notes import AnswerBook, process_reward
from treadle.recipes.recipe import Recipe
from treadle.recipes.resume import load_weights
from treadle.recipes.run import Run
from treadle.recipes.tools import Tools
from treadle.rendering.renderer import Renderer


def compose(
    recipe: Recipe, *, folder: RunFolder | None = None, listeners: Sequence[Listener] = (), weights: Path | None = None
) -> Run:
    """Make everything that the recipe names. `weights` is a checkpoint, or a model folder, to start from.

    Raises ConfigError, EnvError, SandboxError, ModelError, RenderError or StoreError, each with what to do.
    """
    strict = recipe.cassette.file is not None and recipe.cassette.mode == "strict"
    maker = None if strict else recipe.world.maker()
    if recipe.deterministic and maker is not None:
        _refuse_chance(maker)
    taskset = recipe.world.taskset()
    _refuse_empty(recipe, taskset)
    if recipe.threads is not None:
        _use_threads(recipe.threads)
    policy = Policy.load(recipe.model, dtype=recipe.dtype, compute_dtype=recipe.compute_dtype)
    if policy.dims.context < recipe.engine.context:
        raise ConfigError(
            f"engine.context={recipe.engine.context} contradicts model={recipe.model}, whose context is "
            f"{policy.dims.context} tokens: set engine.context and limits.max_context to at most that"
        )
    _refuse_depth(recipe, layers=policy.dims.layers)
    renderer = Renderer.load(policy.folder, parser=recipe.world.parser())
    if weights is not None:
        load_weights(policy, weights)
    clock, plan, prm = SystemClock(), plan_memory(recipe, policy), process_reward(recipe, policy)
    book = None
    if "answer_prob" in recipe.algorithm.columns:
        taskset = book = AnswerBook(taskset, rule=recipe.algorithm.rule.name, encode=renderer.encode)
    cassette, snapshots = _cassette(recipe.cassette), SnapshotStore(recipe.snapshots)
    with ExitStack() as stack:
        if cassette is not None:
            stack.enter_context(cassette)
        folder = folder or RunFolder.create(recipe.runs, recipe.name)
        run = Run(
            recipe, folder=folder, listeners=listeners,
            tools=Tools(
                taskset=taskset, policy=policy, renderer=renderer, clock=clock, cassette=cassette,
                make_host=_hosts(recipe, maker, cassette, clock=clock, snapshots=snapshots), memory=plan,
                snapshots=snapshots, prm=prm, answers=None if book is None else book.ids,
            ),
        )
        stack.pop_all()  # the run closes the cassette
    run.store.meta("model", str(policy.folder.resolve()) if Path(recipe.model).is_dir() else recipe.model)
    return run


def _cassette(config: CassetteConfig) -> Cassette | None:
    """The recipe's cassette, open. Raises StoreError."""
    if config.file is None:
        return None
    return Cassette(config.file, writes=config.mode != "strict", reads=config.reads)


def _hosts(
    recipe: Recipe, maker: Callable[[], Env] | None, cassette: Cassette | None, *, clock: Clock,
    snapshots: SnapshotStore,
) -> Callable[[], Host]:
    """Makes a host per episode: of the world, of the cassette, or of both. Without `maker` there is no world."""
    if maker is None:
        assert cassette is not None, "no world and no cassette"
        return lambda: RecordedHost(cassette, snapshots=snapshots)

    def live() -> Host:
        return EnvHost(maker, config=recipe.host, clock=clock, snapshots=snapshots)

    if cassette is None:
        return live
    if recipe.cassette.mode == "fallback":
        return lambda: FallbackHost(cassette, live, snapshots=snapshots)
    return lambda: RecordingHost(live(), cassette)


def _use_threads(count: int) -> None:
    torch.set_num_threads(count)
    compute.run(lambda: torch.set_num_threads(count))  # OpenMP asks each thread for itself


def _refuse_depth(recipe: Recipe, *, layers: int) -> None:
    """Raise ConfigError when a learner is to train more layers than the model has."""
    learners = {"learner": recipe.learner} if recipe.pipeline.updates else {}
    if recipe.coldstart is not None:
        learners["coldstart.learner"] = recipe.coldstart.learner
    for key, learner in learners.items():
        if learner.top_layers is not None and learner.top_layers > layers:
            raise ConfigError(
                f"{key}.top_layers={learner.top_layers} contradicts model={recipe.model}, which has {layers} layers: "
                f"set {key}.top_layers to at most that, or to none"
            )


def _refuse_chance(maker: Callable[[], Env]) -> None:
    """Raise ConfigError unless the environment says that equal actions get equal answers."""
    try:
        env = maker()
        declared, kind = env.deterministic, type(env).__name__
    except Exception as error:  # the border to a user's environment, which may raise anything
        said = f"{type(error).__name__}: {one_line(error)}"
        raise EnvError(f"the world's environment cannot be made: {said}") from error
    if not declared:
        raise ConfigError(
            f"deterministic=true contradicts world: {kind}.deterministic is False; set deterministic=false, or "
            "set it to True in an environment in which equal actions always get equal answers, or play recorded "
            "answers: cassette.file and cassette.mode=strict"
        )


def _refuse_empty(recipe: Recipe, taskset: Taskset) -> None:
    """Raise ConfigError when a split that the recipe uses holds no task."""
    used = {"pipeline.updates": "train"} if recipe.pipeline.updates else {}
    if recipe.coldstart is not None:
        used["coldstart.demonstrations.split"] = recipe.coldstart.demonstrations.split
    if recipe.evaluation is not None:
        used["evaluation.split"] = recipe.evaluation.split
    if recipe.validation is not None:
        used["validation.split"] = recipe.validation.split
    firsts = {
        f"{key}.split": config.first
        for key, config in (("evaluation", recipe.evaluation), ("validation", recipe.validation)) if config is not None
    }
    for key, split in used.items():
        try:
            size = size_of(taskset, split)
        except EnvError as error:  # a ValueError says that there is no such split
            said = error.__cause__ if isinstance(error.__cause__, ValueError) else error
            raise ConfigError(f"{key}: {said}") from error
        if size is not None and 0 < size <= firsts.get(key, 0):
            raise ConfigError(
                f"{key.partition('.')[0]}.first: got {firsts[key]}, expected less than the {size} tasks of the split "
                f"{split!r}"
            )
        if size == 0:
            off = "pipeline.updates=0" if key == "pipeline.updates" else f"{key.partition('.')[0]}=None"
            raise ConfigError(f"{key}: the split {split!r} holds no task; give the taskset some, or set {off}")

