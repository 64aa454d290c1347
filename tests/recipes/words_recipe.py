"""Recipes of a test: a tiny model says words to a world that can be told to wait, to fail, or to be slow to train."""

import asyncio
import random
import threading
from dataclasses import dataclass, replace

from treadle import (
    Algorithm,
    ColdStartConfig,
    ColdStartPlan,
    DemonstrationPlan,
    DrGrpo,
    EngineConfig,
    Env,
    EvaluationConfig,
    LearnerConfig,
    PathCredit,
    PipelineConfig,
    PlainParser,
    Recipe,
    RolloutLimits,
    Step,
    Task,
    World,
    user,
)

RELEASE = threading.Event()
"""Lets an update that hangs end, so that its thread can be joined."""


class WordEnv(Env):
    """Pays for the length of what it hears. A task may ask it to hang or to raise in `reset`."""

    deterministic = True

    async def reset(self, task, ctx):
        self.heard = ""
        if task.data.get("hang"):
            await asyncio.Event().wait()
        if task.data.get("fault"):
            raise RuntimeError("this world is broken")
        return [user(task.prompt)]

    async def step(self, action):
        self.heard = action.text
        return Step(terminated=True)

    async def score(self):
        return {"length": len(self.heard) / 8}


class UnsureEnv(WordEnv):
    """Promises nothing."""

    deterministic = False


class SlowEnv(WordEnv):
    """Two turns, and nobody knows when it answers: after up to `most` turns of the event loop."""

    def __init__(self, chance, most=800):
        self.chance = chance
        self.most = most
        self.turns = 0

    async def step(self, action):
        for _ in range(self.chance.randrange(self.most)):
            await asyncio.sleep(0)
        await super().step(action)
        self.turns += 1
        return Step(messages=(user("on"),), terminated=self.turns == 2)


class Words:
    """Endless tasks. `hang` and `fault` say from a split and a number whether the task's world does so."""

    def __init__(self, *, hang=lambda split, number: False, fault=lambda split, number: False):
        self.hang = hang
        self.fault = fault

    def size(self, split):
        return None

    def task(self, split, index):
        data = {"hang": self.hang(split, index), "fault": self.fault(split, index)}
        return Task(id=f"{split}-{index}", prompt="go", split=split, data=data)

    def demonstration(self, task):
        return ["yes yes yes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndlessRule(DrGrpo):
    """Credit that is never done: the update hangs in its thread."""

    def __call__(self, forest):
        print("in the update", flush=True)
        RELEASE.wait(600)
        return PathCredit(advantage=forest.returns)


def words(tasks=None, *, env=WordEnv, epochs=2, updates=2, rule=None, evaluation=4, untouched=None):
    """A recipe of about a second."""
    coldstart = ColdStartPlan(
        demonstrations=DemonstrationPlan(most=8, per_family=8), training=ColdStartConfig(epochs=epochs or 1),
        learner=LearnerConfig(lr=1e-3),
    )
    return Recipe(
        name="words",
        world=World(tasks=tasks or Words(), env=env, reads=PlainParser()),
        model="tiny",
        limits=RolloutLimits(max_tokens_per_turn=8, max_context=128, stop_strings=tuple("abcdefghijklmnopqrstuvwxyz")),
        engine=EngineConfig(slots=16, context=128, kv_budget_tokens=8192),
        coldstart=coldstart if epochs else None,
        algorithm=Algorithm(rule=rule or DrGrpo()),
        learner=LearnerConfig(lr=1e-3),
        pipeline=PipelineConfig(group_size=4, groups_per_update=2, updates=updates),
        evaluation=EvaluationConfig(tasks=evaluation, untouched_tasks=untouched, temperature=1.0)
        if evaluation else None,
    )


def recipe() -> Recipe:
    return words()


def unsure() -> Recipe:
    return words(env=UnsureEnv)


def slow() -> Recipe:
    """Answers come in another order each time, and generation runs an update ahead."""
    chance = random.Random(11)
    made = words(env=lambda: SlowEnv(chance), updates=4)
    return replace(
        made, engine=replace(made.engine, deterministic=True), pipeline=replace(made.pipeline, lag=1)
    )


def endless_coldstart() -> Recipe:
    return words(epochs=300)


def endless_rl() -> Recipe:
    return words(epochs=0, updates=100_000, evaluation=0)


def endless_update() -> Recipe:
    return words(epochs=0, rule=EndlessRule(), evaluation=0)


def hanging_evaluation() -> Recipe:
    """The evaluation after the cold start hangs; that of the untouched model is too short to."""
    return words(Words(hang=lambda split, number: split == "heldout" and number >= 2), untouched=2)


def broken() -> Recipe:
    return words(Words(fault=lambda split, number: True), epochs=0)


def broken_training() -> Recipe:
    return words(Words(fault=lambda split, number: split == "train"), epochs=0, updates=8, evaluation=0)


def sometimes_broken() -> Recipe:
    return words(Words(fault=lambda split, number: number % 2 == 1), epochs=0, updates=3)
