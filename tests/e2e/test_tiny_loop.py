"""The whole loop with nothing faked but the task: a tiny random model learns by imitation, then from reward alone."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
import torch

from treadle.agents.demonstrator import DemonstrationPlan, Demonstrator
from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.losses import Nll, PpoClip
from treadle.core.clock import SystemClock
from treadle.core.errors import WeightMismatch
from treadle.core.messages import user
from treadle.core.seeds import Stream
from treadle.envs.env import Env
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.inference import EngineConfig, LocalEngine
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.models import Policy, build_tiny
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.coldstart import ColdStart, ColdStartConfig
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.evaluation import EvaluationConfig, Evaluator
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, default_filters
from treadle.pipeline.placebo import PermuteRewards
from treadle.pipeline.trainer import BlockingThread, LearnerTrainer
from treadle.rendering import PlainParser, Renderer
from treadle.trajectory.store import TrajectoryStore

WORDS = ("a", "b", "c", "d")
"""What the demonstrations say; only the first is paid for in reinforcement learning."""


class WordEnv(Env):
    """Two turns; says nothing useful, pays for words."""

    async def reset(self, task, ctx):
        self.heard = []
        return [user(task.prompt)]

    async def step(self, action):
        self.heard.append(action.text)
        return Step(messages=(user("on"),), terminated=len(self.heard) == 2)

    async def score(self):
        return {
            "known": float(all(word in WORDS for word in self.heard) and len(self.heard) == 2),
            "best": sum(word == WORDS[0] for word in self.heard) / 2,
        }


class WordTaskset:
    """Task i is demonstrated with words i and i+1."""

    def size(self, split):
        return None

    def task(self, split, index):
        return Task(id=f"{split}-{index}", prompt="go", family=f"f{index % 4}", split=split, data={"i": index})

    def demonstration(self, task):
        i = task.data["i"]
        return [WORDS[i % 4], WORDS[(i // 4) % 4]]


class Ears:
    def __init__(self):
        self.events = []
        self.react = lambda event: None

    def emit(self, event):
        self.events.append(event)
        self.react(event)

    def named(self, name):
        return [dict(e.values) for e in self.events if e.name == name]


class Tiny:
    """Every real room around one tiny policy."""

    def __init__(self, folder, *, lag, updates=12, transform=None):
        torch.manual_seed(0)
        self.clock = SystemClock()
        self.policy = Policy.load(build_tiny(folder / "model", hidden=64, seed=3))
        self.renderer = Renderer.load(self.policy.folder, parser=PlainParser())
        self.rewards = Rewards(main="best", train=("best",))
        self.ears = Ears()
        self.store = TrajectoryStore(folder / "run.db", clock=self.clock)
        self.meter = StageMeter(self.clock)
        self.ledger = Ledger(self.ears, meter=self.meter, rewards=self.rewards)
        self.config = PipelineConfig(group_size=8, groups_per_update=8, updates=updates, lag=lag)
        self.folder = folder
        self.transform = transform

    def make_host(self):
        return EnvHost(WordEnv, config=HostConfig(), clock=self.clock)

    def player(self, engine, *, size, temperature, seed):
        limits = RolloutLimits(max_tokens_per_turn=6, max_context=128, temperature=temperature)
        player = Player(
            engine, self.renderer, make_host=self.make_host, limits=limits, rewards=self.rewards, meter=self.meter
        )
        return GroupPlayer(player, size=size, seed=Stream(seed), watcher=self.ledger)

    async def run(self):
        """Cold start, evaluation, loop, evaluation: share of paid words before and after, and the loop's report."""
        with self.store, BlockingThread() as thread:
            async with LocalEngine(self.policy, EngineConfig(context=128, kv_budget_tokens=16384)) as engine:
                await self._coldstart(engine, thread)
                evaluator = Evaluator(
                    WordTaskset(), self.player(engine, size=1, temperature=1.0, seed=5), ledger=self.ledger,
                    config=EvaluationConfig(tasks=48), version=lambda: self.policy.version, sink=self.store,
                )
                before = await evaluator.run("coldstart")
                report = await self._loop(engine, thread).run()
                after = await evaluator.run("final")
        return before, report, after

    async def _coldstart(self, engine, thread):
        demonstrator = Demonstrator(
            self.renderer, taskset=WordTaskset(), make_host=self.make_host, rewards=Rewards(main="known"),
            seed=Stream(1), sink=self.store,
        )
        found = await demonstrator.collect(DemonstrationPlan(most=16, per_family=4))
        learner = Learner(self.policy, LearnerConfig(lr=1e-2))
        trainer = LearnerTrainer(learner, rule=Imitation(), aggregation=TokenMean(), loss=Nll())
        coldstart = ColdStart(
            ColdStartConfig(epochs=15, demonstrations_per_update=8), trainer=trainer, engine=engine, thread=thread,
            ledger=self.ledger, seed=Stream(1),
        )
        await coldstart.run(found.groups)

    def _loop(self, engine, thread):
        learner = Learner(self.policy, LearnerConfig(lr=4e-3))
        trainer = LearnerTrainer(learner, rule=Grpo(), aggregation=TokenMean(), loss=PpoClip())
        parts = LoopParts(
            taskset=WordTaskset(), player=self.player(engine, size=8, temperature=1.0, seed=7), trainer=trainer,
            engine=engine, ledger=self.ledger, thread=thread, sink=self.store, transform=self.transform,
            filters=default_filters(self.config, rewards=self.rewards, min_rollouts=2),
            checkpoints=Checkpoints(
                self.folder / "checkpoints", trainer=trainer, thread=thread, ledger=self.ledger
            ),
        )
        return Loop(self.config, parts)


@pytest.mark.parametrize("lag", [0, 1])
async def test_a_tiny_model_learns_what_pays(tmp_path, lag):
    tiny = Tiny(tmp_path, lag=lag)
    before, report, after = await tiny.run()
    assert report.reason == "done"
    assert before.reward_mean < 0.5
    assert after.reward_mean > before.reward_mean + 0.3
    assert report.worst_staleness <= lag
    losses = [e["loss"] for e in tiny.ears.named("coldstart.update")]
    assert losses[-1] < losses[0] / 2
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


async def test_at_lag_0_the_first_ratio_is_one(tmp_path):
    tiny = Tiny(tmp_path, lag=0, updates=2)
    await tiny.run()
    for update in tiny.ears.named("update.done"):
        assert update["staleness"] == 0
        assert update["stat.ratio"] == pytest.approx(1.0, abs=1e-3)
        assert 0 <= update["skew_mean"] <= update["skew_max"] < 1e-3


async def test_at_lag_1_only_batches_of_one_version_are_judged(tmp_path):
    tiny = Tiny(tmp_path, lag=1, updates=4)
    await tiny.run()
    updates = tiny.ears.named("update.done")
    assert [update["skew_mean"] is None for update in updates] == [update["staleness"] > 0 for update in updates]
    assert updates[0]["skew_mean"] is not None


class OffEngine(LocalEngine):
    """Records log-probs of another policy than the one that the learner holds."""

    async def generate(self, request):
        done = await super().generate(request)
        return replace(done, logprobs=done.logprobs - 0.01)


async def test_an_engine_of_another_mind_stops_the_run_at_its_first_batch(tmp_path):
    tiny = Tiny(tmp_path, lag=0)
    with tiny.store, BlockingThread() as thread:
        async with OffEngine(tiny.policy, EngineConfig(context=128, kv_budget_tokens=16384)) as engine:
            await tiny._coldstart(engine, thread)
            version = tiny.policy.version
            with pytest.raises(WeightMismatch, match=r"by 0\.01 nats on average and 0\.01 at most .*max_skew=0\.001"):
                await tiny._loop(engine, thread).run()
    assert tiny.ears.named("update.done") == []
    assert tiny.policy.version == version


async def test_rewards_dealt_out_at_random_teach_nothing(tmp_path):
    tiny = Tiny(tmp_path, lag=0, transform=PermuteRewards(seed=Stream(11)))
    before, _, after = await tiny.run()
    assert after.reward_mean < before.reward_mean + 0.3


async def test_every_rollout_of_a_real_run_ends_once(tmp_path):
    tiny = Tiny(tmp_path, lag=1, updates=3)
    await tiny.run()
    told = Counter(e["rollout"] for e in tiny.ears.named("rollout.done") if e["split"] == "train")
    assert set(told.values()) == {1}
    assert len(told) == 3 * 8 * 8


async def test_a_stop_in_mid_run_saves_and_leaves_the_engine_empty(tmp_path):
    tiny = Tiny(tmp_path, lag=1, updates=1000)
    with tiny.store, BlockingThread() as thread:
        async with LocalEngine(tiny.policy, EngineConfig(context=128, kv_budget_tokens=16384)) as engine:
            await tiny._coldstart(engine, thread)
            loop = tiny._loop(engine, thread)
            tiny.ears.react = lambda event: loop.stop() if event.name == "update.done" else None
            report = await loop.run()
            async with asyncio.timeout(30):
                while engine.load_signal().running or engine.load_signal().kv_tokens:
                    await tiny.clock.sleep(0.01)
            load = engine.load_signal()
    assert (report.reason, report.updates) == ("interrupted", 1)
    assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)
    saved = Policy.load(tmp_path / "checkpoints" / f"version-{report.version:06d}" / "model")
    for mine, theirs in zip(tiny.policy.module.parameters(), saved.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)
