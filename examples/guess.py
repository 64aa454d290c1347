"""An environment of one's own, and a run that trains on it.

The model must find a secret number with the tool `guess` and then `submit` it. With `--model tiny`, a random model that
is built in a second, nothing is learned, but everything runs: the same file trains any chat model that calls tools.

Run it:  python examples/guess.py --model tiny --updates 2
or, so that other commands find the recipe of the run again:
         treadle train examples/guess.py --set model=tiny --set pipeline.updates=2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import treadle
from treadle import Env, EnvContext, Fork, ListTaskset, Message, Task, ToolError, World, tool, user


class GuessEnv(Env):
    """Find the secret number with `guess`, then `submit` it."""

    max_turns = 8
    fork = Fork.COPY  # all state is in attributes: a live episode is forked by copying them

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        self.secret = ctx.rng.randint(1, task.data["hi"])  # the same for all rollouts of a group
        self.answer, self.n = 0, 0
        return [user(task.prompt)]

    @tool(read_only=True, idempotent=True, timeout_s=2)
    async def guess(self, x: int) -> str:
        """Compare x with the secret."""
        if x < 0:
            raise ToolError("x must be >= 0")  # the model sees this
        self.n += 1
        return "higher" if x < self.secret else "lower" if x > self.secret else "equal"

    @tool
    async def submit(self, x: int) -> str:
        """Submit the final answer."""
        self.answer = x
        return "recorded"

    async def score(self) -> dict[str, float]:
        return {"correct": float(self.answer == self.secret), "turns": -0.02 * self.n}


def tasks(split: str, count: int) -> list[Task]:
    return [
        Task(id=f"{split}-{i}", prompt=f"Find the secret number, 1 to {10 + i}.", split=split, data={"hi": 10 + i})
        for i in range(count)
    ]


def recipe(model: str = "smollm2-135m", updates: int = 20) -> treadle.Recipe:
    return treadle.Recipe(
        name="guess",
        world=World(tasks=ListTaskset(tasks("train", 20), tasks("heldout", 5)), env=GuessEnv),
        model=model,
        rewards=treadle.Rewards(main="correct"),
        limits=treadle.RolloutLimits(max_tokens_per_turn=64, max_context=1024),
        engine=treadle.EngineConfig(context=1024),
        pipeline=treadle.PipelineConfig(group_size=4, groups_per_update=4, updates=updates),
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--updates", type=int, default=20)
    args = options.parse_args()
    treadle.train(recipe(args.model, args.updates))


if __name__ == "__main__":
    main()
