"""What becomes of learning when 30 % of the attempts lose their machinery: masked, or filled with zeros.

The model is that of `bench.fault_tiny`: tiny, random, one turn, paid when it ends with the right kind of letter, and
trained from reward alone. In the faulty arms the world of a rollout raises InfraError when the action has been taken,
in 30 % of the attempts, by a named stream. There are two worlds:

    independent   whether it fails depends on nothing that the policy did: the mildest case, zeros add noise and no bias
    biased        another action pays 0.8 and needs no machinery; only what pays 1 meets the failures. With zeros filled
                  in it is worth 0.7, and the worse action looks better

and these arms:

    clean                    nothing fails
    masked                   what Treadle does by default: played again twice at most, then left out; siblings train
    masked_without_retries   left out at once, and groups train from half of their rollouts on: 30 % of the data is lost
    zero_filled              a wrapper around the world, here only, that does what must not be done: the failure becomes
                             the end of the rollout, with reward 0

A curve is the share of *sampled actions* that were the best one, per update, failed attempts included, as the world
heard them before it failed: so it says what the policy does and not how its failures were booked. Seeds are of the
model's weights and of all sampling, the same in all arms. The noise of two arms is twice the standard error of the
difference of their means, from the spreads over the seeds; the two verdicts are on the means of whole curves in the
independent world. What pairing by seed shows stands beside it: it takes the spread of the seeds out, and so sees
smaller differences.
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
from bench.fault_tiny import PAID, LetterEnv, TinyTrainer, tiny
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
SAFE, SAFE_PAYS = frozenset("nopqrstuvwxyz"), 0.8
"""Letters that need no machinery in the biased world, and what they pay."""
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
        if self.needs_machinery() and self.seed.at(self.rollout).uniform(0) < self.share:
            raise InfraError("the machinery of this world is gone")
        return step

    def needs_machinery(self) -> bool:
        """Whether the action that was heard can fail."""
        return True

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


class SaferLetters(FlakyLetters):
    """Has a worse action that cannot fail."""

    def needs_machinery(self) -> bool:
        return self.heard[-1:] in PAID

    async def score(self) -> Mapping[str, float]:
        score = await super().score()
        return {"paid": SAFE_PAYS} if self.heard[-1:] in SAFE else score


class SaferZeroFilled(ZeroFilled, SaferLetters):
    """Both."""


Arm = tuple[type[FlakyLetters], float, PipelineConfig]
WITHOUT_RETRIES = replace(CONFIG, infra_retries=0, min_valid=0.5)
WORLDS: Mapping[str, Mapping[str, Arm]] = {
    "independent": {
        "clean": (FlakyLetters, 0.0, CONFIG),
        "masked": (FlakyLetters, SHARE, CONFIG),
        "masked_without_retries": (FlakyLetters, SHARE, WITHOUT_RETRIES),
        "zero_filled": (ZeroFilled, SHARE, CONFIG),
    },
    "biased": {
        "clean": (SaferLetters, 0.0, CONFIG),
        "masked": (SaferLetters, SHARE, CONFIG),
        "zero_filled": (SaferZeroFilled, SHARE, CONFIG),
    },
}
LENGTH = {"independent": 1, "biased": 2}
"""How many times the usual updates a world takes to be learned."""
Job = tuple[str, str, int, int]
"""World, arm, seed, updates."""


async def learn(arm: Arm, *, seed: int, updates: int, folder: Path) -> list[float]:
    """One run's curve."""
    world, share, config = arm
    heard, stream = Heard(), Stream(seed).at("failures")
    async with asyncio.timeout(RUN_S), tiny(folder / "model", seed=seed) as made:
        trainer = TinyTrainer(Learner(made.policy, LearnerConfig(lr=LR)))
        lab = made.lab(
            trainer, folder=None, config=replace(config, updates=updates),
            make_env=lambda: world(heard, share=share, seed=stream),
        )
        lab.seed = seed
        await lab.run()
    return heard.curve()


def one_run(job: Job) -> list[float]:
    """`learn` in a process of a pool."""
    world, arm, seed, updates = job
    with tempfile.TemporaryDirectory(prefix="treadle-curves-") as folder:
        return asyncio.run(learn(WORLDS[world][arm], seed=seed, updates=updates, folder=Path(folder)))


def curves(*, seeds: int, updates: int, workers: int) -> dict[str, object]:
    """All arms of all worlds over all seeds, and the two verdicts."""
    jobs = [
        (world, arm, seed, LENGTH[world] * updates)
        for world, arms in WORLDS.items() for seed in range(seeds) for arm in arms
    ]
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(max_workers=workers, mp_context=spawn) as pool:
        found = dict(zip(jobs, pool.map(one_run, jobs), strict=True))
    runs = {
        world: {arm: [found[world, arm, seed, LENGTH[world] * updates] for seed in range(seeds)] for arm in arms}
        for world, arms in WORLDS.items()
    }
    whole = compare(runs["independent"])
    return {
        "masked_curve_within_noise_of_clean": abs(whole["masked"]["behind_clean"]) <= whole["masked"]["noise"],
        "zero_filled_curve_below_noise": whole["zero_filled"]["behind_clean"] > whole["zero_filled"]["noise"],
        "learning": {
            "seeds": seeds, "failing_share": SHARE, **{world: summary(arms) for world, arms in runs.items()},
        },
    }


Runs = Mapping[str, Sequence[Sequence[float]]]
"""Curves by arm and seed."""


def summary(runs: Runs) -> dict[str, object]:
    """Curves (mean and spread over seeds), and how far the faulty arms are behind, as a whole and in the end."""
    return {
        "updates": len(runs["clean"][0]),
        "curves": {arm: over_seeds(found, statistics.fmean) for arm, found in runs.items()},
        "curve_spread": {arm: over_seeds(found, statistics.stdev) for arm, found in runs.items()},
        "whole_curve": compare(runs), f"last_{LAST}_updates": compare(runs, last=LAST),
    }


def compare(runs: Runs, *, last: int = 0) -> dict[str, dict[str, float]]:
    """Each arm's mean over the seeds, of the whole curve or its `last` updates, against that of the clean arm."""
    means = {arm: [statistics.fmean(curve[-last:]) for curve in found] for arm, found in runs.items()}
    out: dict[str, dict[str, float]] = {}
    for arm, values in means.items():
        behind = [clean - value for clean, value in zip(means["clean"], values, strict=True)]
        out[arm] = {"mean": statistics.fmean(values), "spread": statistics.stdev(values)}
        if arm != "clean":
            out[arm] |= {
                "behind_clean": statistics.fmean(behind), "noise": noise(means["clean"], values),
                "noise_paired": 2.0 * statistics.stdev(behind) / len(behind) ** 0.5,
            }
    return out


def noise(some: Sequence[float], others: Sequence[float]) -> float:
    """Twice the standard error of the difference of two means."""
    return 2.0 * math.sqrt(statistics.variance(some) / len(some) + statistics.variance(others) / len(others))


def over_seeds(found: Sequence[Sequence[float]], what: Callable[[list[float]], float]) -> list[float]:
    """A figure of all seeds, per update."""
    return [round(what(list(values)), 4) for values in zip(*found, strict=True)]
