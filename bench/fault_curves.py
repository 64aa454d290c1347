"""What becomes of learning when 30 % of all rollouts lose their machinery: two ways to treat them, beside a clean run.

The model and the task are those of `bench.fault_tiny`: a tiny random model, one turn, paid when it ends with the right
kind of letter, trained from reward alone. In the faulty arms the world of a rollout raises InfraError when the action
has been taken, in 30 % of all attempts, by a named stream: whether it does depends on nothing that the policy did.

    clean                    nothing fails
    masked                   what Treadle does by default: played again twice at most, then left out; siblings train
    masked_without_retries   left out at once, and groups train from half of their rollouts on: 30 % of the data is lost
    zero_filled              a wrapper around the world, here only, that does what must not be done: the failure becomes
                             the end of the rollout, with reward 0

A curve is the share of *sampled actions* that were right, per update, failed attempts included, as the world heard them
before it failed: so it says what the policy does and not how its failures were booked, and a zero that was filled in
does not lower it by itself. What is compared is the mean of the whole curve, over seeds (of the model's weights and of
all sampling). The noise of two arms is twice the standard error of their difference, from their spreads over the seeds.
Failures that depend on nothing are the mildest case for zeros: they add noise to every baseline, and no direction.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.fault_lab import WHO
from bench.fault_tiny import LetterEnv, TinyTrainer, tiny
from treadle.core.actions import Action
from treadle.core.errors import InfraError
from treadle.core.messages import Message
from treadle.core.seeds import Stream
from treadle.envs.env import EnvContext
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.pipeline.config import PipelineConfig

SHARE = 0.3
"""Of all attempts that fail in the faulty arms."""
CONFIG = PipelineConfig(group_size=8, groups_per_update=8)
LR = 2e-3
LAST = 5
"""Updates at the end whose mean is told beside that of the whole curve."""
RUN_S = 120.0
"""Deadline of one run."""


class Heard:
    """What the policy said, by update: 1 for a right action, else 0."""

    def __init__(self) -> None:
        self.by_update: defaultdict[int, list[float]] = defaultdict(list)

    def note(self, rollout: str, right: bool) -> None:
        ticket = int(rollout[1:].partition(".")[0])
        self.by_update[ticket // CONFIG.groups_per_update].append(float(right))

    def curve(self) -> list[float]:
        return [statistics.fmean(self.by_update[update]) for update in sorted(self.by_update)]


class FlakyLetters(LetterEnv):
    """Notes what it hears, and then loses its machinery in a share of the attempts."""

    def __init__(self, heard: Heard, *, share: float, seed: Stream) -> None:
        self.notes, self.share, self.seed = heard, share, seed
        self.rollout = ""
        self.acted = False

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.rollout = WHO.get()
        return await super().reset(task, ctx)

    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        self.acted = True
        self.notes.note(self.rollout, (await super().score())["paid"] > 0)
        if self.seed.at(self.rollout).uniform(0) < self.share:
            raise InfraError("the machinery of this world is gone")
        return step

    async def score(self) -> Mapping[str, float]:
        if not self.acted:  # the turn did not end in time
            self.notes.note(self.rollout, False)
        return await super().score()


class ZeroFilled(FlakyLetters):
    """Wrong on purpose: a failure of the machinery becomes a rollout that is over and was worth nothing."""

    lost = False

    async def step(self, action: Action) -> Step:
        try:
            return await super().step(action)
        except InfraError:
            self.lost = True
            return Step(terminated=True)

    async def score(self) -> Mapping[str, float]:
        return {"paid": 0.0} if self.lost else await super().score()


Arm = tuple[type[FlakyLetters], float, PipelineConfig]
ARMS: Mapping[str, Arm] = {
    "clean": (FlakyLetters, 0.0, CONFIG),
    "masked": (FlakyLetters, SHARE, CONFIG),
    "masked_without_retries": (FlakyLetters, SHARE, replace(CONFIG, infra_retries=0, min_valid=0.5)),
    "zero_filled": (ZeroFilled, SHARE, CONFIG),
}


async def learn(arm: str, *, seed: int, updates: int, folder: Path, lr: float = LR) -> list[float]:
    """One run's curve."""
    world, share, config = ARMS[arm]
    heard, stream = Heard(), Stream(seed).at("failures")
    async with asyncio.timeout(RUN_S), tiny(folder / "model", seed=seed) as made:
        trainer = TinyTrainer(Learner(made.policy, LearnerConfig(lr=lr)))
        lab = made.lab(
            trainer, folder=None, config=replace(config, updates=updates),
            make_env=lambda: world(heard, share=share, seed=stream),
        )
        lab.seed = seed
        await lab.run()
    return heard.curve()


def one_run(job: tuple[str, int, int]) -> list[float]:
    """`learn` in a process of a pool."""
    arm, seed, updates = job
    with tempfile.TemporaryDirectory(prefix="treadle-curves-") as folder:
        return asyncio.run(learn(arm, seed=seed, updates=updates, folder=Path(folder)))


def curves(*, seeds: int, updates: int, workers: int) -> dict[str, object]:
    """All arms over all seeds, and what they say."""
    jobs = [(arm, seed, updates) for seed in range(seeds) for arm in ARMS]
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(max_workers=workers, mp_context=spawn) as pool:
        found = dict(zip(jobs, pool.map(one_run, jobs), strict=True))
    return summary({arm: [found[arm, seed, updates] for seed in range(seeds)] for arm in ARMS})


def summary(runs: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, object]:
    """Curves (mean over seeds), their means, the noise, and the two verdicts. `runs` are curves by arm and seed."""
    whole = {arm: [statistics.fmean(curve) for curve in found] for arm, found in runs.items()}
    faulty = [arm for arm in runs if arm != "clean"]
    behind = {arm: statistics.fmean(whole["clean"]) - statistics.fmean(whole[arm]) for arm in faulty}
    limits = {arm: noise(whole["clean"], whole[arm]) for arm in faulty}
    return {
        "seeds": len(whole["clean"]), "updates": len(runs["clean"][0]), "failing_share": SHARE,
        "curves": {arm: over_seeds(found, statistics.fmean) for arm, found in runs.items()},
        "curve_spread": {arm: over_seeds(found, statistics.stdev) for arm, found in runs.items()},
        "mean": {arm: statistics.fmean(values) for arm, values in whole.items()},
        "mean_per_seed": whole,
        "last_updates_mean": {
            arm: statistics.fmean(value for curve in found for value in curve[-LAST:]) for arm, found in runs.items()
        },
        "behind_clean": behind, "noise": limits,
        "behind_clean_per_seed": {
            arm: [clean - other for clean, other in zip(whole["clean"], whole[arm], strict=True)] for arm in faulty
        },
        "masked_curve_within_noise_of_clean": abs(behind["masked"]) <= limits["masked"],
        "zero_filled_curve_below_noise": behind["zero_filled"] > limits["zero_filled"],
    }


def noise(some: Sequence[float], others: Sequence[float]) -> float:
    """Twice the standard error of the difference of two means."""
    return 2.0 * math.sqrt(statistics.variance(some) / len(some) + statistics.variance(others) / len(others))


def over_seeds(found: Sequence[Sequence[float]], what: Callable[[list[float]], float]) -> list[float]:
    """A figure of all seeds, per update."""
    return [round(what(list(values)), 4) for values in zip(*found, strict=True)]
