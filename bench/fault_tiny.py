"""Faults of the learner and of a real engine, around a tiny random model that learns from reward alone.

The model's turn ends with the first letter or digit that it samples; one of the alphabet's first thirteen small letters
pays 1, anything else 0. It is random at first and pays about one time in five.

    nan_loss        the loss is not a number, or infinite: such updates are skipped, counted, and end the run in a row
    engine_raises   forwards of `LocalEngine` raise, and every request of that step fails (beside `bench.fault_worlds`)
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import string
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.fault_judge import Verdict
from bench.fault_lab import Book, Injector, Lab, Setting
from bench.fault_worlds import engine_breaks
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import Loss, LossTerms, PpoClip
from treadle.core.actions import Action
from treadle.core.errors import TrainingDiverged
from treadle.core.messages import Message, user
from treadle.envs.env import Env, EnvContext
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.inference import EngineConfig, LocalEngine
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.models import Policy, build_tiny
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.trainer import LearnerTrainer, TrainReport
from treadle.rendering import PlainParser, Renderer
from treadle.trajectory.group import Group

PAID = frozenset("abcdefghijklm")
ENDS = tuple(string.ascii_letters + string.digits)
LIMITS = RolloutLimits(max_tokens_per_turn=16, max_context=128, stop_strings=ENDS)
REWARDS = Rewards(main="paid")
CONFIG = PipelineConfig(group_size=8, groups_per_update=4, updates=10, lag=1)
NAN_AT = {2: math.nan, 3: math.inf, 5: math.nan, 8: math.nan, 9: math.inf}
"""Updates whose loss is multiplied with this."""
DIVERGES_AT = 4
"""From this update on the loss of another run is never a number."""


# -- the world and the model -----------------------------------------------------------------------------------


class LetterEnv(Env):
    """One turn; pays for its last letter."""

    deterministic = True

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.heard = ""
        return [user(task.prompt)]

    async def step(self, action: Action) -> Step:
        self.heard = action.text
        return Step(terminated=True)

    async def score(self) -> Mapping[str, float]:
        return {"paid": float(self.heard[-1:] in PAID)}


class Letters:
    """One task, over and over."""

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> Task:
        return Task(id=f"{split}-{index}", prompt="go", split=split)

    def demonstration(self, task: Task) -> Sequence[str] | None:
        return None


class TinyTrainer(LearnerTrainer):
    """A real learner that keeps a book."""

    def __init__(self, learner: Learner, *, loss: Loss | None = None) -> None:
        super().__init__(learner, rule=Grpo(), aggregation=TokenMean(), loss=loss or PpoClip())
        self.book = Book()

    def train(self, groups: Sequence[Group]) -> TrainReport:
        self.book.enter(groups)
        return super().train(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A tiny policy with its renderer and a running engine."""

    policy: Policy
    renderer: Renderer
    engine: LocalEngine

    def lab(self, trainer: TinyTrainer, *, folder: Path | None, config: PipelineConfig, make_env: Any) -> Lab:
        """A run of it."""
        return Lab(
            folder=folder, config=config, make_env=make_env, engine=self.engine, trainer=trainer, book=trainer.book,
            taskset=Letters(), renderer=self.renderer, rewards=REWARDS, limits=LIMITS,
        )


@asynccontextmanager
async def tiny(folder: Path, *, seed: int = 3, kind: type[Policy] = Policy) -> AsyncIterator[Tiny]:
    """Build the model in this folder, and start an engine on it. One thread per tensor operation."""
    torch.set_num_threads(1)
    policy = kind.load(build_tiny(folder, hidden=64, seed=seed))
    renderer = Renderer.load(policy.folder, parser=PlainParser())
    config = EngineConfig(slots=128, context=128, kv_budget_tokens=16_384)
    async with LocalEngine(policy, config, decode=renderer.decode) as engine:
        yield Tiny(policy=policy, renderer=renderer, engine=engine)


# -- nan_loss --------------------------------------------------------------------------------------------------


class PoisonedLoss:
    """PPO's loss, times a factor."""

    name: ClassVar[str] = "poisoned"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})
    bounded: ClassVar[bool] = True

    def __init__(self) -> None:
        self.plain = PpoClip()
        self.factor = 1.0

    def __call__(self, logp: Tensor, terms: LossTerms) -> Tensor:
        return self.plain(logp, terms) * self.factor

    def report(self, logp: Tensor, terms: LossTerms) -> dict[str, float]:
        return self.plain.report(logp, terms)


class PoisonedTrainer(TinyTrainer):
    """Some of its updates have a loss that is no number; knows which, and whether the weights changed."""

    def __init__(self, learner: Learner, *, injector: Injector, factor: Callable[[int], float]) -> None:
        self.poison = PoisonedLoss()
        super().__init__(learner, loss=self.poison)
        self.injector = injector
        self.factor = factor
        self.updates: list[tuple[bool, bool, int]] = []
        """(poisoned, the weights changed, groups) of every update."""

    def train(self, groups: Sequence[Group]) -> TrainReport:
        number = len(self.updates) + 1
        self.poison.factor = self.factor(number)
        poisoned, before = self.poison.factor != 1.0, self.digest()
        if poisoned:
            self.injector.note(f"the loss of update {number} is {self.poison.factor} times what it should be")
        report = super().train(groups)
        self.updates.append((poisoned, self.digest() != before, len(groups)))
        return report

    def digest(self) -> str:
        """Of all weights."""
        made = hashlib.sha256()
        for parameter in self.learner.policy.module.parameters():
            made.update(parameter.detach().numpy().tobytes())
        return made.hexdigest()


def nan_loss(setting: Setting) -> Verdict:
    """One run in which some updates are poisoned, one that never recovers."""
    return asyncio.run(_nan_loss(setting))


async def _nan_loss(setting: Setting) -> Verdict:
    verdict = Verdict()
    async with tiny(setting.folder / "model") as made:
        trainer = _poisoned(made, setting, lambda update: NAN_AT.get(update, 1.0))
        lab = made.lab(trainer, folder=setting.folder / "some", config=CONFIG, make_env=LetterEnv)
        report = await lab.run()
        hit = sum(poisoned for poisoned, _, _ in trainer.updates)
        verdict.require(report.reason == "done", f"the run ended as {report.reason}")
        verdict.require(hit == report.skipped_updates > 0, f"{report.skipped_updates} of {hit} were counted")
        sound = len(trainer.updates) - hit
        verdict.require(report.version == sound, f"the version is {report.version} after {sound} sound updates")
        _judge_updates(lab, trainer, verdict)
    async with tiny(setting.folder / "model") as made:
        trainer = _poisoned(made, setting, lambda update: math.nan if update >= DIVERGES_AT else 1.0)
        lab = made.lab(trainer, folder=setting.folder / "all", config=CONFIG, make_env=LetterEnv)
        try:
            await lab.run()
            verdict.wrong.append("a run whose loss is never a number went on")
        except TrainingDiverged:
            tried = len(trainer.updates) - (DIVERGES_AT - 1)
            most = CONFIG.skipped_updates
            verdict.require(tried == most, f"the run was given up after {tried} updates, expected {most}")
        _judge_updates(lab, trainer, verdict)
    return verdict


def _poisoned(made: Tiny, setting: Setting, factor: Callable[[int], float]) -> PoisonedTrainer:
    return PoisonedTrainer(
        Learner(made.policy, LearnerConfig(lr=1e-3)), injector=setting.injector, factor=factor
    )


def _judge_updates(lab: Lab, trainer: PoisonedTrainer, verdict: Verdict) -> None:
    """Weights change in sound updates only; the ledger says which were skipped, and that those trained nobody."""
    for number, (poisoned, changed, _) in enumerate(trainer.updates, 1):
        verdict.require(changed != poisoned, f"update {number}: poisoned {poisoned}, weights changed {changed}")
    told = [bool(e["skipped"]) for e in lab.told.named("update.done")]
    verdict.require(told == [p for p, _, _ in trainer.updates], f"updates told to be skipped: {told}")
    trained = len(lab.told.named("group.trained"))
    meant = sum(groups for poisoned, _, groups in trainer.updates if not poisoned)
    verdict.require(trained == meant, f"{trained} groups were told to be trained, {meant} were")
    dropped = sum(e["reason"] == "skipped" for e in lab.told.named("group.dropped"))
    meant = sum(groups for poisoned, _, groups in trainer.updates if poisoned)
    verdict.require(dropped == meant, f"{dropped} groups were told to be dropped as skipped, {meant} were")
    failed = [e for e in lab.told.named("rollout.done") if e["status"] == "error"]
    verdict.require(not failed, f"{len(failed)} rollouts failed, though nothing was done to them")


# -- engine_raises ---------------------------------------------------------------------------------------------

FORWARDS_TO_A_BREAK = 25


class FlakyPolicy(Policy):
    """Raises in some forwards of the engine; the learner's are sound."""

    injector: ClassVar[Injector]
    forwards = 0

    def hidden(self, ids: Tensor, pos: Tensor, plan: Any, sums: Any = None) -> Tensor:
        if torch.is_inference_mode_enabled():  # the learner's forwards are no inference
            self.forwards += 1
            if self.forwards % FORWARDS_TO_A_BREAK == 7:
                self.injector.note(f"forward {self.forwards} of the engine raises")
                raise MemoryError("as told")
        return super().hidden(ids, pos, plan, sums)


def engine_raises(setting: Setting) -> Verdict:
    """A scripted engine whose faults are known by rollout, then the real one."""
    verdict = engine_breaks(Setting(folder=setting.folder / "scripted", injector=setting.injector, size=setting.size))
    FlakyPolicy.injector = setting.injector
    verdict.add(asyncio.run(_forwards_raise(setting)))
    return verdict


async def _forwards_raise(setting: Setting) -> Verdict:
    verdict = Verdict()
    async with tiny(setting.folder / "model", kind=FlakyPolicy) as made:
        trainer = TinyTrainer(Learner(made.policy, LearnerConfig(lr=1e-3)))
        lab = made.lab(trainer, folder=setting.folder / "real", config=CONFIG, make_env=LetterEnv)
        report = await lab.run()
        load = made.engine.load_signal()
    ended = lab.told.named("rollout.done")
    failed = {str(e["rollout"]): (e["status"], e["origin"], e["type"]) for e in ended if e["status"] == "error"}
    verdict.require(report.reason == "done", f"the run ended as {report.reason}")
    verdict.require(bool(failed), "no request was in a forward that raised")
    verdict.wrong += [f"{name} ended {end}" for name, end in failed.items() if end != ("error", "infra", "EngineError")]
    verdict.require(max(Counter(str(e["rollout"]) for e in ended).values()) == 1, "a rollout ended twice")
    verdict.wrong += [f"{e['rollout']} failed with a reward" for e in ended
                      if str(e["rollout"]) in failed and e["reward"] is not None]
    verdict.as_reward += sum(rollout in failed for rollout, _ in lab.book)
    verdict.require((load.running, load.waiting) == (0, 0), f"the engine was left with {load}")
    return verdict
