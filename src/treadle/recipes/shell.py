"""The built-in recipes: a language model learns to use a shell."""

from __future__ import annotations

from treadle.agents.demonstrator import DemonstrationPlan
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.inference.config import EngineConfig
from treadle.learner.config import LearnerConfig
from treadle.pipeline.coldstart import ColdStartConfig
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.evaluation import EvaluationConfig
from treadle.recipes.recipe import ColdStartPlan, Recipe
from treadle.recipes.world import ShellWorld


def shell() -> Recipe:
    """SmolLM2-135M-Instruct, cold start on 96 demonstrations, then GRPO on what the shell answers."""
    return Recipe(
        name="shell",
        world=ShellWorld(),
        limits=RolloutLimits(max_turns=4, max_tokens_per_turn=48, max_context=512),
        rewards=Rewards(main="correct"),
        engine=EngineConfig(slots=64, context=512),
        coldstart=ColdStartPlan(
            demonstrations=DemonstrationPlan(most=96, per_family=4),
            training=ColdStartConfig(epochs=3, demonstrations_per_update=8),
            learner=LearnerConfig(lr=5e-5),
        ),
        learner=LearnerConfig(lr=1e-5),
        pipeline=PipelineConfig(group_size=8, groups_per_update=8, updates=30),
        evaluation=EvaluationConfig(tasks=300, untouched_tasks=60),
    )


def shell_smoke() -> Recipe:
    """The whole way of `shell` in small: a tiny random model that learns nothing."""
    return Recipe(
        name="shell-smoke",
        world=ShellWorld(train_levels=("easy",)),
        model="tiny",
        limits=RolloutLimits(max_turns=2, max_tokens_per_turn=16, max_context=1024),
        rewards=Rewards(main="correct"),
        engine=EngineConfig(slots=16, context=1024),
        coldstart=ColdStartPlan(
            demonstrations=DemonstrationPlan(most=8, per_family=1),
            training=ColdStartConfig(epochs=1, demonstrations_per_update=4),
            learner=LearnerConfig(lr=1e-3),
        ),
        learner=LearnerConfig(lr=1e-4),
        pipeline=PipelineConfig(group_size=4, groups_per_update=2, updates=2),
        evaluation=EvaluationConfig(tasks=6),
    )
