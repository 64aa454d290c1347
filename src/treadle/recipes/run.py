"""One run, stage by stage.

    await run.train()           untouched evaluation, cold start, reinforcement learning, final evaluation; what the
                                folder's past holds of it already is not done again
    await run.evaluate(label)   held-out tasks under the weights of now
    await run.play(task)        one rollout

A run owns its engine, store and thread: use it as `async with compose(recipe) as run`. Errors come out as themselves,
the first of them, never as a group.

Stopping: `stop()` lets an update finish, gives up an evaluation, demonstrations or a single rollout, saves what was
trained, and `train` returns with reason `interrupted`. It must be called from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from treadle.agents.branching import Branching
from treadle.agents.demonstrator import Demonstrator
from treadle.agents.group_player import GroupPlayer, RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.losses import Nll
from treadle.core.errors import DeadlineExceeded, TreadleError
from treadle.core.events import Fanout, Listener, Value
from treadle.core.heap import settled
from treadle.core.memory import Memory
from treadle.core.ports import WeightRef
from treadle.core.seeds import Stream
from treadle.envs.task import Task
from treadle.learner.learner import Learner
from treadle.learner.publisher import Publisher
from treadle.observability.shield import Shield
from treadle.pipeline.checkpoints import Checkpoints, Mark, begin_at
from treadle.pipeline.coldstart import ColdStart
from treadle.pipeline.evaluation import Evaluation, EvaluationConfig, Evaluator
from treadle.pipeline.first_error import first_error
from treadle.pipeline.heartbeat import heartbeat
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, default_filters
from treadle.pipeline.past import Past
from treadle.pipeline.placebo import PermuteRewards
from treadle.pipeline.trainer import BlockingThread, LearnerTrainer
from treadle.pipeline.watchdog import Silence, remedy
from treadle.recipes.engines import first_load, make_engine
from treadle.recipes.folder import RunFolder
from treadle.recipes.measures import Measures
from treadle.recipes.notes import reference_of
from treadle.recipes.recipe import ColdStartPlan, Recipe
from treadle.recipes.resume import load_weights
from treadle.recipes.room import room
from treadle.recipes.tools import Tools
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
    """The newest checkpoint, whose `model` folder transformers loads; None when nothing was trained."""
    best: Path | None = None
    """The checkpoint that did best on held-out tasks; None unless `pipeline.evaluate_every` keeps it."""


class Run:
    """One run. Make it with `compose`, use it with `async with`, train once."""

    def __init__(self, recipe: Recipe, *, folder: RunFolder, listeners: Sequence[Listener], tools: Tools) -> None:
        self.recipe = recipe if tools.memory is None else tools.memory.applied(recipe)
        """With the sizes that its budget of memory gives; the folder keeps it as it was."""
        self.folder = folder
        self.tools = tools
        self.store = TrajectoryStore(folder.database, clock=tools.clock)  # first: it keeps a second writer away
        try:
            self.past, remains = Past.read(
                folder.database, updates=recipe.pipeline.updates,
                trees=recipe.branching.begin(size=recipe.pipeline.group_size, limits=recipe.limits) is not None,
            )
            self.store.clear(remains)
            folder.write_recipe(recipe.toml())
        except TreadleError:
            self.store.close()
            raise
        self.publisher = Publisher(folder.weights) if recipe.engine.copies else None
        """None when the engine shares the learner's tensors."""
        plan = tools.memory
        self.memory = None if plan is None else Memory(plan.own_budget)
        """The budget of this process; None without one."""
        self.engine = make_engine(
            self.recipe.engine, tools.policy, clock=tools.clock, decode=tools.renderer.decode,
            restarts=recipe.pipeline.watchdog.restarts, restarted=self._restarted, memory=self.memory,
            own_memory=None if plan is None else plan.engine_budget,
        )
        self.ledger = Ledger(
            Fanout(self.store, *map(Shield, listeners)), meter=StageMeter(tools.clock), rewards=recipe.rewards,
            past=self.past,
        )
        self.measures = Measures(
            recipe, folder, ledger=self.ledger, version=lambda: tools.policy.version, play=self._evaluate,
            restore=self._take, past=self.past.evaluations,
        )
        self.thread = BlockingThread()
        tools.snapshots.say = self._warn
        self._seed = Stream(recipe.seed)
        self._stack = AsyncExitStack()
        self._updates = 0
        """Batches that reinforcement learning took."""
        self._stopping = False
        self._stop_stage: Callable[[], object] = lambda: None
        self._begin: tuple[Path | None, Mark] = (None, Mark())
        """The checkpoint that training began at, and where it stood."""
        self._trainer: LearnerTrainer | None = None
        """Of reinforcement learning; None before it."""
        self.watch: Callable[[LearnerTrainer], LearnerTrainer] = lambda trainer: trainer
        """What the trainer of reinforcement learning is wrapped in, for those who look over its shoulder."""

    async def __aenter__(self) -> Run:
        async with AsyncExitStack() as stack:
            stack.enter_context(self.store)
            if self.tools.cassette is not None:
                stack.enter_context(self.tools.cassette)
            stack.enter_context(self.thread)
            await stack.enter_async_context(self.engine)
            if self.publisher is not None:
                publisher = stack.enter_context(self.publisher)
                await first_load(self.engine, publisher, self.tools.policy, thread=self.thread)
            stack.enter_context(heartbeat(say=self._warn, tell=self._slept))
            stack.enter_context(settled())
            self._stack = stack.pop_all()
        if self.memory is not None:
            loop = asyncio.get_running_loop()
            self.memory.tell = lambda facts: _from_thread(loop, lambda: self.ledger.tell("memory.relieved", facts))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def stop(self) -> None:
        """Come to an end as soon as nothing is lost. From the event loop's thread only; calling twice is the same."""
        if not self._stopping:
            self._stopping = True
            self.ledger.tell("run.stopping", {"reason": "asked to stop"})
            self._stop_stage()

    async def train(self) -> RunResult:
        """The whole run. Raises the first error of a stage; StoreError before it starts when the disk is too full."""
        began = self.tools.clock.now()
        self.folder.require_room(room(self.recipe, self.tools.policy))
        try:
            if self.past.began:
                await self._go_on()
            await self._stages()
        except BaseException as error:  # told to the listeners and passed on
            if isinstance(error, Exception) and not isinstance(error, DeadlineExceeded):  # its thread is free
                await self._salvage()
            self._tell("run.failed", began, type=type(error).__name__, message=str(error))
            raise
        reason = "interrupted" if self._stopping else "done"
        self._tell("run.done", began, reason=reason, updates=self._updates)
        return RunResult(
            folder=self.folder.path, reason=reason, version=self.tools.policy.version,
            evaluations=dict(self.measures.found), checkpoint=self.folder.newest_checkpoint, best=self.measures.best,
        )

    async def evaluate(self, label: str, *, update: int = 0, tasks: int | None = None) -> Evaluation | None:
        """Held-out tasks under the weights of now; None when the recipe has no evaluation or a stop came first.

        A label that was evaluated already is not evaluated again.
        """
        return await self.measures.held_out(label, update=update, tasks=tasks)

    async def _evaluate(
        self, config: EvaluationConfig, label: str, update: int, tasks: int | None
    ) -> Evaluation | None:
        if self._stopping:
            return None
        limits = replace(self.recipe.limits, temperature=config.temperature)
        evaluator = Evaluator(
            self.tools.taskset, self._players(1, limits, self._seed.at("evaluation")), config=config,
            version=lambda: self.tools.policy.version, ledger=self.ledger, sink=self.store,
            silent_s=self.recipe.pipeline.watchdog.rollout_s,
        )
        return await self._stoppable(evaluator.run(label, update=update, tasks=tasks))

    async def play(self, task: Task, *, temperature: float | None = None) -> Group | None:
        """One rollout of one task, as a group of one; None when a stop came first."""
        limits = self.recipe.limits
        limits = limits if temperature is None else replace(limits, temperature=temperature)
        key = GroupKey(
            id="rollout", ticket=0, task=task.id, family=task.family, split=task.split,
            admitted_version=self.tools.policy.version,
        )
        players = self._players(1, limits, self._seed.at("rollout"))
        silence = Silence(self.recipe.pipeline.watchdog.rollout_s, player=players, ledger=self.ledger)
        return await self._stoppable(silence.over(lambda: players.play(Group(key, sink=self.store), task)))

    # -- stages ------------------------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        """Restore the newest checkpoint that can be read."""
        self._begin = await self.thread.call(
            "restoring a checkpoint", lambda: begin_at(self.folder.checkpoints, self._restore, say=self._warn),
            deadline_s=self.recipe.pipeline.update_s,
        )
        if self._begin[1].stage != "rl":  # which parameters train is the say of the learner that is made last
            self._trainer = None
        if self._begin[0] is None:
            self._warn(f"{self.folder.path.name} has no checkpoint to go on from: it begins again, with what is stored")
        await self._load()

    def _restore(self, checkpoint: Path, mark: Mark) -> None:
        if mark.stage == "rl":
            self._trainer = self._trainer or self._make_trainer(fresh=False)
            self._trainer.learner.restore(checkpoint)
        else:
            load_weights(self.tools.policy, checkpoint)

    async def _stages(self) -> None:
        recipe = self.recipe
        start, mark = self._begin
        began: dict[str, Value] = {} if not self.past.began else {
            "checkpoint": "" if start is None else start.name, "version": self.tools.policy.version,
            "update": mark.update, "replayed": sum(update > mark.update for update in self.past.batches),
            "kept": self.past.kept, "again": self.past.again,
        }
        self.ledger.tell("run.resumed" if self.past.began else "run.started", {
            "run": self.folder.path.name, "recipe": recipe.name, "seed": recipe.seed, "model": recipe.model,
            "updates": recipe.pipeline.updates, "groups_per_update": recipe.pipeline.groups_per_update,
            "group_size": recipe.pipeline.group_size, "lag": recipe.pipeline.lag,
            "max_staleness": recipe.pipeline.staleness_bound, "rule": recipe.algorithm.rule.name,
            "loss": recipe.algorithm.loss.name, **began,
        })
        if self.tools.memory is not None:
            self.ledger.tell("memory.planned", self.tools.memory.facts())
        await self.evaluate("untouched", tasks=recipe.evaluation.untouched_tasks if recipe.evaluation else None)
        if recipe.coldstart is not None and not self._stopping:
            await self._cold_start(recipe.coldstart)
            await self.measures.stage("coldstart")
        if recipe.pipeline.updates and not self._stopping:
            await self._reinforce()
            await self.measures.stage("final", update=self._updates)
        if (saver := self.measures.saver) is not None:  # a version that is saved already is not saved again
            await saver.save(update=0)

    async def _cold_start(self, plan: ColdStartPlan) -> None:
        if self._begin[1].stage:  # the weights have it behind them
            return
        groups = await self._demonstrations(plan)
        if groups is None or self._stopping:
            return
        updates = plan.training.updates(len(groups))
        learner = await self._in_thread("the beginning of the cold start's learner", lambda: Learner(
            self.tools.policy, plan.learner.over(updates), publisher=self.publisher, memory=self.memory
        ))
        trainer = LearnerTrainer(learner, rule=Imitation(), aggregation=TokenMean(), loss=Nll())
        coldstart = ColdStart(
            plan.training, trainer=trainer, engine=self.engine, thread=self.thread, ledger=self.ledger,
            seed=self._seed,
        )
        saver = self.measures.saver = self._checkpoints(trainer)
        self._stop_stage = coldstart.stop
        if await coldstart.run(groups) == updates:
            saver.mark = lambda: Mark(stage="coldstart")
            if self.recipe.pipeline.save_every:
                await saver.save(update=0)

    async def _demonstrations(self, plan: ColdStartPlan) -> Sequence[Group] | None:
        """Correct demonstrations, the stored ones if they were all played before; None when a stop came first."""
        if (held := self.past.demonstrations()) is not None:
            return [group for group in held if all(map(self.recipe.rewards.solved, group.rollouts.values()))]
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
            return None
        self.ledger.tell("coldstart.demos", {
            "tried": found.tried, "kept": len(found.groups), "wrong": found.wrong, "failed": found.failed,
            "families": len(found.families), "tokens": found.tokens, "seconds_s": clock.now() - began,
        })
        self.ledger.tell("stage.done", {
            "stage": "demonstrations", "label": "demonstrations", "seconds_s": clock.now() - began,
        })
        return found.groups

    def _make_trainer(self, *, fresh: bool) -> LearnerTrainer:
        """Of reinforcement learning. `fresh`: the policy's weights of now are those that it begins with."""
        recipe, algorithm = self.recipe, self.recipe.algorithm
        learner = Learner(
            self.tools.policy, recipe.learner.over(recipe.pipeline.updates), publisher=self.publisher,
            memory=self.memory,
        )
        learner.answers = self.tools.answers
        learner.reference = reference_of(recipe, self.tools.policy, self.folder, fresh=fresh)
        return self.watch(LearnerTrainer(
            learner, rule=algorithm.rule, aggregation=algorithm.aggregation, loss=algorithm.objective,
            shared=algorithm.shared, prm=self.tools.prm,
        ))

    async def _reinforce(self) -> None:
        recipe, algorithm = self.recipe, self.recipe.algorithm
        trainer = self._trainer
        if trainer is None:
            trainer = await self._in_thread("the beginning of the learner", lambda: self._make_trainer(fresh=True))
        saver = self.measures.saver = self._checkpoints(trainer)
        if self._trainer is not None:
            saver.newest = self._begin[0]
        loop = Loop(recipe.pipeline, LoopParts(
            taskset=self.tools.taskset,
            player=self._players(
                recipe.pipeline.group_size, recipe.limits, self._seed, spare=recipe.pipeline.spare_rollouts,
                branching=recipe.branching,
            ),
            trainer=trainer, engine=self.engine, ledger=self.ledger, thread=self.thread,
            filters=default_filters(
                recipe.pipeline, rewards=recipe.rewards, min_rollouts=algorithm.rule.min_rollouts
            ),
            curriculum=recipe.pipeline.curriculum.begin(
                self.tools.taskset, group_size=recipe.pipeline.group_size, rewards=recipe.rewards, seed=self._seed
            ),
            checkpoints=saver, sink=self.store, store=self.store,
            transform=PermuteRewards(seed=self._seed) if recipe.placebo else None,
            evaluate=self._between, begin=self._begin[1],
        ))
        clock, began = self.tools.clock, self.tools.clock.now()
        self._stop_stage = loop.stop
        self.ledger.tell("stage.started", {"stage": "rl", "label": "rl", "total": recipe.pipeline.updates})
        await self.measures.validate(0)
        self._stop_stage = loop.stop
        if self._stopping:
            return
        report = await loop.run()
        self._updates = report.updates
        if report.reason == "done":
            await self.measures.validate(report.updates)
        if not self._stopping:
            await self.measures.take_back()
        self.ledger.tell("stage.done", {"stage": "rl", "label": "rl", "seconds_s": clock.now() - began})

    async def _between(self, update: int) -> None:
        stage = self._stop_stage
        await self.measures.between(update)
        self._stop_stage = stage
        if self._stopping:
            stage()

    async def _take(self, checkpoint: Path) -> None:
        """Go on with the weights of a checkpoint."""
        await self.thread.call(
            f"taking back {checkpoint.name}", lambda: load_weights(self.tools.policy, checkpoint),
            deadline_s=self.recipe.pipeline.update_s,
        )
        await self._load()

    async def _load(self) -> None:
        """Have the engine serve the weights of now."""
        if self.publisher is None:
            await self.engine.load(WeightRef(version=self.tools.policy.version))
        else:
            await first_load(self.engine, self.publisher, self.tools.policy, thread=self.thread)

    # -- parts -------------------------------------------------------------------------------------------------

    def _players(
        self, size: int, limits: RolloutLimits, seed: Stream, *, spare: int = 0, branching: Branching | None = None
    ) -> GroupPlayer:
        player = Player(
            self.engine, self.tools.renderer, make_host=self.tools.make_host, limits=limits,
            rewards=self.recipe.rewards, meter=self.ledger.meter,
        )
        retries = RetryBudget(infra=self.recipe.pipeline.infra_retries, env=self.recipe.pipeline.env_retries)
        return GroupPlayer(
            player, size=size, retries=retries, seed=seed, watcher=self.ledger, spare=spare, branching=branching
        )

    def _checkpoints(self, trainer: LearnerTrainer) -> Checkpoints:
        made = Checkpoints(
            self.folder.checkpoints, trainer=trainer, thread=self.thread, ledger=self.ledger,
            keep=self.recipe.pipeline.keep_checkpoints, deadline_s=self.recipe.pipeline.update_s, books=self.store,
        )
        made.best = self.measures.best
        return made

    async def _stoppable(self, work: Coroutine[object, object, T]) -> T | None:
        """The result of `work`; None when a stop gave it up. Raises its first error."""
        with first_error():
            async with asyncio.TaskGroup() as one:
                task = one.create_task(work)
                self._stop_stage = task.cancel
        self._stop_stage = lambda: None
        return None if task.cancelled() else task.result()

    async def _in_thread(self, what: str, work: Callable[[], T]) -> T:
        """Do what may wait at the policy's gate, as a learner's beginning does, where it holds nobody up."""
        return await self.thread.call(what, work, deadline_s=self.recipe.pipeline.update_s)

    async def _salvage(self) -> None:
        """Save what was trained before the run failed, if the disk allows it."""
        with contextlib.suppress(TreadleError):
            if (saver := self.measures.saver) is not None:
                await saver.save(update=0)

    def _restarted(self, why: str, seconds: float) -> None:
        facts = remedy("restart", wait="the run", lacks=f"its engine ({why})", seconds=seconds)
        self.ledger.tell("watchdog.acted", facts)

    def _slept(self, what: str) -> None:
        self.ledger.tell("wait.expired", {"what": what, "action": "the run goes on"})

    @staticmethod
    def _warn(line: str) -> None:
        """Say it now: events have to wait for the loop."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"treadle: {line}\n")

    def _tell(self, name: str, began: float, **facts: Value) -> None:
        self.ledger.tell(name, {
            **facts, "version": self.tools.policy.version, "seconds_s": self.tools.clock.now() - began,
            "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, **self._taped(),
            **self.tools.snapshots.used(),
        })

    def _taped(self) -> dict[str, Value]:
        """What was done with the cassette since the run began, or went on; nothing where there is none."""
        if self.tools.cassette is None:
            return {}
        counts = self.tools.cassette.counts
        return {
            "cassette.recorded": counts.kept, "cassette.replayed": counts.found, "cassette.missed": counts.missing,
            "cassette.differing": counts.differing,
        }


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have the loop call it; one that is closed has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
