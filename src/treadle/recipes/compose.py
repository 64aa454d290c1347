"""From a recipe to a run: every room's object is made here, once, and handed to the one that needs it.

    compose(recipe) -> Run      the run folder is there, the model is loaded, nothing has started
    await run.train()           untouched evaluation, cold start, reinforcement learning, final evaluation
    await run.evaluate(label)   held-out tasks under the weights of now
    await run.play(task)        one rollout

What can fail because of this machine (sandbox, weights, template, disk) fails in `compose`, before any time is spent.
A run owns its engine, store and thread: use it as `async with compose(recipe) as run`.

Stopping: `stop()` lets what is under way come to its natural end (an update finishes, an evaluation is given up),
saves, and returns with reason `interrupted`. It must be called from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch

from treadle.agents.demonstrator import Demonstrator
from treadle.agents.group_player import GroupPlayer, RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.losses import Nll
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError
from treadle.core.events import Fanout, Listener
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost
from treadle.envs.task import Task, Taskset
from treadle.inference.engine import LocalEngine
from treadle.learner.learner import Learner
from treadle.models.policy import Policy
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.coldstart import ColdStart
from treadle.pipeline.evaluation import Evaluation, Evaluator
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, default_filters
from treadle.pipeline.placebo import PermuteRewards
from treadle.pipeline.trainer import BlockingThread, LearnerTrainer
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import ColdStartPlan, Recipe
from treadle.rendering.renderer import Renderer
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended."""

    folder: Path
    reason: str
    """`done` or `interrupted`."""
    version: int
    """Policy version at the end."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """By label: `untouched`, `coldstart`, `final`, and those in between."""
    checkpoint: Path | None = None
    """The newest checkpoint; None when nothing was saved."""


def compose(
    recipe: Recipe, *, folder: RunFolder | None = None, listeners: Sequence[Listener] = (), weights: Path | None = None
) -> Run:
    """Make everything that the recipe names. `weights` is a checkpoint to start from.

    Raises ConfigError, SandboxError, ModelError, RenderError or StoreError, each with what to do.
    """
    maker = recipe.world.maker()
    taskset = recipe.world.taskset()
    torch.set_num_threads(recipe.threads or torch.get_num_threads())
    policy = Policy.load(recipe.model)
    if policy.dims.context < recipe.engine.context:
        raise ConfigError(
            f"engine.context={recipe.engine.context} is longer than the context of {recipe.model}, "
            f"{policy.dims.context} tokens: set engine.context and limits.max_context to at most that"
        )
    renderer = Renderer.load(policy.folder, parser=recipe.world.parser())
    if weights is not None:
        policy.restore(weights, version=policy.version)
    clock = SystemClock()
    return Run(
        recipe, folder=folder or RunFolder.create(recipe.runs, recipe.name), listeners=listeners,
        tools=Tools(
            taskset=taskset, policy=policy, renderer=renderer, clock=clock,
            make_host=lambda: EnvHost(maker, config=recipe.host, clock=clock),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every stage of a run uses."""

    taskset: Taskset
    policy: Policy
    renderer: Renderer
    clock: SystemClock
    make_host: Callable[[], EnvHost]


class Run:
    """One run. Make it with `compose`, use it with `async with`, train once."""

    def __init__(self, recipe: Recipe, *, folder: RunFolder, listeners: Sequence[Listener], tools: Tools) -> None:
        self.recipe = recipe
        self.folder = folder
        self.tools = tools
        self.evaluations: dict[str, Evaluation] = {}
        folder.recipe.write_text(recipe.toml(), encoding="utf-8")
        self.store = TrajectoryStore(folder.database, clock=tools.clock)
        self.engine = LocalEngine(tools.policy, recipe.engine, clock=tools.clock, decode=tools.renderer.decode)
        self.ledger = Ledger(
            Fanout(self.store, *listeners), meter=StageMeter(tools.clock), rewards=recipe.rewards
        )
        self.thread = BlockingThread()
        self._seed = Stream(recipe.seed)
        self._stack = AsyncExitStack()
        self._stopping = False
        self._stop_stage: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Run:
        self._stack.enter_context(self.store)
        self._stack.enter_context(self.thread)
        await self._stack.enter_async_context(self.engine)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def stop(self) -> None:
        """Come to an end as soon as nothing is lost. From the event loop's thread only; calling twice is the same."""
        if not self._stopping:
            self._stopping = True
            self._stop_stage()

    async def train(self) -> RunResult:
        """The whole run. Raises the first error of a stage."""
        recipe, clock = self.recipe, self.tools.clock
        began = clock.now()
        self.ledger.tell("run.started", {
            "run": self.folder.path.name, "recipe": recipe.name, "seed": recipe.seed, "model": recipe.model,
            "updates": recipe.pipeline.updates, "groups_per_update": recipe.pipeline.groups_per_update,
            "group_size": recipe.pipeline.group_size, "lag": recipe.pipeline.lag,
            "max_staleness": recipe.pipeline.staleness_bound,
        })
        untouched = recipe.evaluation.untouched_tasks if recipe.evaluation else None
        await self.evaluate("untouched", tasks=untouched)
        if recipe.coldstart is not None and not self._stopping:
            await self._cold_start(recipe.coldstart)
            await self.evaluate("coldstart")
        if recipe.pipeline.updates and not self._stopping:
            await self._reinforce()
            await self.evaluate("final", update=recipe.pipeline.updates)
        result = RunResult(
            folder=self.folder.path, reason="interrupted" if self._stopping else "done",
            version=self.tools.policy.version, evaluations=dict(self.evaluations),
            checkpoint=self.folder.newest_checkpoint,
        )
        self.ledger.tell("run.done", {
            "reason": result.reason, "updates": recipe.pipeline.updates, "version": result.version,
            "seconds_s": clock.now() - began,
            "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        })
        return result

    async def evaluate(self, label: str, *, update: int = 0, tasks: int | None = None) -> Evaluation | None:
        """Held-out tasks under the weights of now; None when the recipe has no evaluation or a stop came first."""
        config = self.recipe.evaluation
        if config is None or self._stopping:
            return None
        limits = replace(self.recipe.limits, temperature=config.temperature)
        evaluator = Evaluator(
            self.tools.taskset, self._players(1, limits, self._seed.at("evaluation")), config=config,
            version=lambda: self.tools.policy.version, ledger=self.ledger, sink=self.store,
        )
        found = await self._stoppable(evaluator.run(label, update=update, tasks=tasks))
        if found is not None:
            self.evaluations[label] = found
        return found

    async def play(self, task: Task, *, temperature: float | None = None) -> Group:
        """One rollout of one task, as a group of one."""
        limits = self.recipe.limits
        limits = limits if temperature is None else replace(limits, temperature=temperature)
        key = GroupKey(
            id="rollout", ticket=0, task=task.id, family=task.family, split=task.split,
            admitted_version=self.tools.policy.version,
        )
        group = Group(key, sink=self.store)
        return await self._players(1, limits, self._seed.at("rollout")).play(group, task)

    # -- stages ------------------------------------------------------------------------------------------------

    async def _cold_start(self, plan: ColdStartPlan) -> None:
        clock, began = self.tools.clock, self.tools.clock.now()
        self.ledger.tell("stage.started", {
            "stage": "demonstrations", "label": "demonstrations", "total": plan.demonstrations.most,
        })
        demonstrator = Demonstrator(
            self.tools.renderer, taskset=self.tools.taskset, make_host=self.tools.make_host,
            rewards=self.recipe.rewards, seed=self._seed, max_context=self.recipe.limits.max_context, sink=self.store,
        )
        found = await self._stoppable(demonstrator.collect(plan.demonstrations))
        if found is None:
            return
        self.ledger.tell("coldstart.demos", {
            "tried": found.tried, "kept": len(found.groups), "wrong": found.wrong, "failed": found.failed,
            "families": len(found.families), "tokens": found.tokens, "seconds_s": clock.now() - began,
        })
        trainer = LearnerTrainer(
            Learner(self.tools.policy, plan.learner), rule=Imitation(), aggregation=TokenMean(), loss=Nll()
        )
        coldstart = ColdStart(
            plan.training, trainer=trainer, engine=self.engine, thread=self.thread, ledger=self.ledger,
            seed=self._seed,
        )
        self._stop_stage = coldstart.stop
        await coldstart.run(found.groups)
        if self._stopping:
            await self._checkpoints(trainer).save(update=0)

    async def _reinforce(self) -> None:
        recipe, algorithm = self.recipe, self.recipe.algorithm
        trainer = LearnerTrainer(
            Learner(self.tools.policy, recipe.learner), rule=algorithm.rule, aggregation=algorithm.aggregation,
            loss=algorithm.loss,
        )
        loop = Loop(recipe.pipeline, LoopParts(
            taskset=self.tools.taskset,
            player=self._players(recipe.pipeline.group_size, recipe.limits, self._seed),
            trainer=trainer, engine=self.engine, ledger=self.ledger, thread=self.thread,
            filters=default_filters(
                recipe.pipeline, rewards=recipe.rewards, min_rollouts=algorithm.rule.min_rollouts
            ),
            checkpoints=self._checkpoints(trainer), sink=self.store,
            transform=PermuteRewards(seed=self._seed) if recipe.placebo else None,
            evaluate=self._between,
        ))
        clock, began = self.tools.clock, self.tools.clock.now()
        self._stop_stage = loop.stop
        self.ledger.tell("stage.started", {"stage": "rl", "label": "rl", "total": recipe.pipeline.updates})
        await loop.run()
        self.ledger.tell("stage.done", {"stage": "rl", "label": "rl", "seconds_s": clock.now() - began})

    async def _between(self, update: int) -> None:
        stage = self._stop_stage
        await self.evaluate(f"update-{update}", update=update)
        self._stop_stage = stage
        if self._stopping:
            stage()

    # -- parts -------------------------------------------------------------------------------------------------

    def _players(self, size: int, limits: RolloutLimits, seed: Stream) -> GroupPlayer:
        player = Player(
            self.engine, self.tools.renderer, make_host=self.tools.make_host, limits=limits,
            rewards=self.recipe.rewards, meter=self.ledger.meter,
        )
        retries = RetryBudget(infra=self.recipe.pipeline.infra_retries, env=self.recipe.pipeline.env_retries)
        return GroupPlayer(player, size=size, retries=retries, seed=seed, watcher=self.ledger)

    def _checkpoints(self, trainer: LearnerTrainer) -> Checkpoints:
        return Checkpoints(
            self.folder.checkpoints, trainer=trainer, thread=self.thread, ledger=self.ledger,
            keep=self.recipe.pipeline.keep_checkpoints, deadline_s=self.recipe.pipeline.update_s,
        )

    async def _stoppable(self, work: Coroutine[object, object, T]) -> T | None:
        """The result of `work`; None when a stop gave it up."""
        async with asyncio.TaskGroup() as one:
            task = one.create_task(work)
            self._stop_stage = task.cancel
        self._stop_stage = lambda: None
        return None if task.cancelled() else task.result()
