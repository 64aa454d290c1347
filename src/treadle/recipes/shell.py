"""The built-in recipes: a language model learns to use a shell."""

from __future__ import annotations

from treadle.agents.demonstrator import DemonstrationPlan
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.inference.config import EngineConfig
from treadle.learner.config import LearnerConfig
from treadle.pipeline.coldstart import ColdStartConfig
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import ByDifficulty
from treadle.pipeline.evaluation import EvaluationConfig, ValidationConfig
from treadle.recipes.recipe import ColdStartPlan, Recipe
from treadle.recipes.world import ShellWorld

SHELL_FAMILIES = (
    "show-file", "first-lines", "last-lines", "count-lines", "count-words", "count-matches", "count-files",
    "find-lines", "which-file", "find-name", "largest-file", "sum-column", "sort-lines", "unique-lines",
    "write-file", "append-line", "make-folder", "copy-file", "move-file", "delete-file", "replace-word",
    "pack-folder", "make-executable", "compare-files",
)
"""What `shell` trains on: every craft of the suite is in it. The suite has more families of some."""


def shell() -> Recipe:
    """SmolLM2-135M-Instruct, cold start on 96 demonstrations, then GRPO on what the shell answers."""
    return Recipe(
        name="shell",
        world=ShellWorld(
            seed=1, families=SHELL_FAMILIES, train_levels=("easy", "medium") * 4 + ("hard",),
            heldout_levels=("easy", "medium") * 3 + ("hard",), train_wordings=5,
        ),
        limits=RolloutLimits(max_turns=3, max_tokens_per_turn=32, max_context=512),
        rewards=Rewards(main="correct"),
        engine=EngineConfig(slots=128, context=512, kv_budget_tokens=28672),
        coldstart=ColdStartPlan(
            demonstrations=DemonstrationPlan(most=96, per_family=4, first=1_000_000),
            training=ColdStartConfig(epochs=3, demonstrations_per_update=4),
            learner=LearnerConfig(lr=1e-4, schedule="linear", top_layers=15, tokens_per_pack=640),
        ),
        learner=LearnerConfig(lr=8e-5, schedule="linear", top_layers=10, tokens_per_pack=640),
        pipeline=PipelineConfig(
            group_size=8, groups_per_update=16, updates=54, curriculum=ByDifficulty(floor=0.05), evaluate_every=18,
            finish="best",
        ),
        evaluation=EvaluationConfig(tasks=336, untouched_tasks=84, temperature=1.0, at_once=128),
        validation=ValidationConfig(tasks=128, temperature=1.0, at_once=128),
    )


def shell_smoke() -> Recipe:
    """The whole way of `shell` in small: a tiny random model learns one command by heart and is paid for it."""
    return Recipe(
        name="shell-smoke",
        world=ShellWorld(families=("largest-file",), train_levels=("easy",), heldout_levels=("easy",)),
        model="tiny",
        limits=RolloutLimits(max_turns=2, max_tokens_per_turn=40, max_context=512),
        rewards=Rewards(main="correct"),
        engine=EngineConfig(slots=32, context=512),
        coldstart=ColdStartPlan(
            demonstrations=DemonstrationPlan(most=8, per_family=8),
            training=ColdStartConfig(epochs=32, demonstrations_per_update=4),
            learner=LearnerConfig(lr=5e-3),
        ),
        learner=LearnerConfig(lr=3e-4),
        pipeline=PipelineConfig(group_size=8, groups_per_update=4, updates=3),
        evaluation=EvaluationConfig(tasks=6),
    )
