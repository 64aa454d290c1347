"""A recipe of a second for runs under filters: a tiny random model talks to a world of two kinds of task."""

from treadle import (
    DrGrpo,
    EngineConfig,
    Env,
    EvaluationConfig,
    LearnerConfig,
    PipelineConfig,
    PlainParser,
    Recipe,
    RolloutLimits,
    Step,
    Task,
    World,
    user,
)
from treadle.recipes.recipe import Algorithm

TURNS = 3


class TalkEnv(Env):
    """Over at once when the first thing it hears begins with an early letter or has none; else after three turns.

    A task of the family `flat` pays everybody alike.
    """

    deterministic = True

    async def reset(self, task, ctx):
        self.flat, self.heard = task.family == "flat", []
        return [user(task.prompt)]

    async def step(self, action):
        self.heard.append(action.text)
        return Step(messages=(user("on"),), terminated=self.heard[0][-1:] < "h" or len(self.heard) == TURNS)

    async def score(self):
        return {"length": 0.5 if self.flat else sum(map(len, self.heard)) / 64}


class Tasks:
    """Every third is flat."""

    def size(self, split):
        return None

    def task(self, split, index):
        family = "flat" if index % 3 == 0 else "mixed"
        return Task(id=f"{split}-{index}", prompt="go", family=family, split=split)

    def demonstration(self, task):
        return None


def recipe() -> Recipe:
    return Recipe(
        name="talk",
        world=World(tasks=Tasks(), env=TalkEnv, reads=PlainParser()),
        model="tiny",
        limits=RolloutLimits(
            max_turns=TURNS, max_tokens_per_turn=16, max_context=128,
            stop_strings=tuple("abcdefghijklmnopqrstuvwxyz"),
        ),
        engine=EngineConfig(slots=16, context=128, kv_budget_tokens=8192),
        algorithm=Algorithm(rule=DrGrpo()),
        learner=LearnerConfig(lr=1e-3),
        pipeline=PipelineConfig(group_size=4, groups_per_update=3, updates=2),
        evaluation=EvaluationConfig(tasks=2, temperature=1.0),
    )
