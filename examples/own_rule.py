"""A credit rule of one's own, in a recipe file.

The world asks three times and pays each answer for its variety, so what an answer is worth is known as soon as it is
given. The rule compares what was earned from a turn on with what the group's other rollouts earned from that turn on.
`model` is a random one that is built in a second; the same file trains any chat model.

Run it:  treadle train examples/own_rule.py --set pipeline.updates=2 --set algorithm.rule.gamma=0.5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar, Literal

import treadle
from treadle import Env, EnvContext, Forest, ListTaskset, Message, NodeCredit, Step, Task, Turns, World, center, user


# the rule
@dataclass(frozen=True, slots=True, kw_only=True)
class FromHere:
    """What was earned from an action on, minus what the group earned from the same turn on."""

    name: ClassVar[str] = "from_here"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Literal["group", "batch"]] = "group"
    min_rollouts: ClassVar[int] = 2
    gamma: float = 0.9

    def __call__(self, forest: Forest) -> NodeCredit:
        turns = Turns.of(forest)
        earned = turns.togo(turns.reward, self.gamma)
        same_turn = 1000 * turns.group + turns.ordinal
        return NodeCredit(advantage=turns.rows(center(earned, same_turn)))


# the recipe
class Variety(Env):
    """Three questions; an answer is paid for the different characters in it."""

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        self.asked, self.paid = 1, 0.0
        return [user(task.prompt)]

    async def step(self, action: treadle.Action) -> Step:
        reward = len(set(action.text)) / 16
        self.asked, self.paid = self.asked + 1, self.paid + reward
        return Step(messages=(user("Go on."),), reward=reward, terminated=self.asked > 3)

    async def score(self) -> dict[str, float]:
        return {"mean": self.paid / 3}


def recipe() -> treadle.Recipe:
    splits = ["train"] * 4 + ["heldout"] * 4
    tasks = [Task(id=f"{split}-{i}", prompt=f"Say {i}.", split=split) for i, split in enumerate(splits)]
    return treadle.Recipe(
        name="own-rule",
        world=World(tasks=ListTaskset(tasks[:4], tasks[4:]), env=Variety, reads=treadle.PlainParser()),
        model="tiny",
        rewards=treadle.Rewards(main="mean", train=("step",)),
        limits=treadle.RolloutLimits(
            max_tokens_per_turn=32, max_context=512, stop_strings=tuple(ascii_lowercase)  # it does not know how to end
        ),
        engine=treadle.EngineConfig(context=512),
        algorithm=treadle.Algorithm(rule=FromHere()),
        learner=treadle.LearnerConfig(lr=1e-3),
        pipeline=treadle.PipelineConfig(group_size=4, groups_per_update=2, updates=4),
    )
