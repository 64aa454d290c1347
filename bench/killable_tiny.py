"""A real run of the tiny model that can be killed: `treadle.train` and `treadle.train(resume=...)`, nothing faked.

    python -m bench.killable_tiny RUNS [--resume RUN] [--kill NAME:N] [--slots S] [--evaluate-every E]

Cold start, evaluations and updates at lag 0, in deterministic mode: a rollout that is played again has the same bits,
log-probs included, whatever else waits. At NAME:N the process kills itself with SIGKILL when the N-th event of that
name is told.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from treadle import (
    Algorithm,
    ColdStartConfig,
    ColdStartPlan,
    DemonstrationPlan,
    DrGrpo,
    EngineConfig,
    EvaluationConfig,
    LearnerConfig,
    PipelineConfig,
    PlainParser,
    Recipe,
    Rewards,
    RolloutLimits,
    World,
    train,
)
from treadle.core.events import Event
from treadle.testing.echo_env import EchoEnv, EchoTaskset


class LengthEnv(EchoEnv):
    """Two turns; pays for the length of what it hears."""

    async def score(self) -> Mapping[str, float]:
        return {"length": len("".join(self.heard)) / 4}


def recipe(runs: Path, *, slots: int, evaluate_every: int = 0) -> Recipe:
    """About two seconds of work."""
    return Recipe(
        name="killable",
        world=World(tasks=EchoTaskset(("yes", "no"), data={"turns": 2}), env=LengthEnv, reads=PlainParser()),
        model="tiny",
        limits=RolloutLimits(max_tokens_per_turn=8, max_context=192, stop_strings=tuple("xyz ")),
        rewards=Rewards(main="length"),
        engine=EngineConfig(slots=slots, context=192, kv_budget_tokens=8192),
        deterministic=True,
        coldstart=ColdStartPlan(
            demonstrations=DemonstrationPlan(most=4, per_family=2), training=ColdStartConfig(epochs=2),
            learner=LearnerConfig(lr=1e-3),
        ),
        algorithm=Algorithm(rule=DrGrpo()),
        learner=LearnerConfig(lr=1e-3, schedule="linear"),
        pipeline=PipelineConfig(
            group_size=4, groups_per_update=2, updates=5, save_every=2, keep_checkpoints=2,
            evaluate_every=evaluate_every,
        ),
        evaluation=EvaluationConfig(tasks=3, temperature=1.0),
        runs=runs,
    )


class Killer:
    """A listener that ends its process."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.left = name, number

    def emit(self, event: Event) -> None:
        if event.name == self.name:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.killable_tiny")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--kill", default="never:1", metavar="NAME:N")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--evaluate-every", type=int, default=0)
    args = parser.parse_args()
    name, _, number = args.kill.partition(":")
    made = recipe(args.runs, slots=args.slots, evaluate_every=args.evaluate_every)
    result = train(made, view="none", listeners=[Killer(name, int(number))], resume=args.resume)
    sys.stdout.write(f"{result.checkpoint}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
