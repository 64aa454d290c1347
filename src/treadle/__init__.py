"""Treadle trains language-model agents by reinforcement learning on what they do.

Everything that users need is a name of this module; it is imported when it is first used, so `import treadle` is light.

    treadle.train(recipe)       train and write a run folder
    treadle.evaluate(run)       held-out tasks under a checkpoint
    treadle.rollout(run)        play one task

A recipe nests typed configs (`Recipe`); a world is a taskset, an environment (`Env`, `@tool`) and a parser (`World`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from treadle.agents.demonstrator import DemonstrationPlan
    from treadle.agents.limits import Rewards, RolloutLimits
    from treadle.algorithms.aggregation import SeqMeanTokenMean, SeqSumConst, TokenMean
    from treadle.algorithms.credit import CreditRule, NodeCredit, PathCredit
    from treadle.algorithms.group_baseline import DrGrpo, Grpo, Rloo
    from treadle.algorithms.imitation import Imitation
    from treadle.algorithms.losses import Loss, LossTerms, Nll, PpoClip
    from treadle.core.actions import Action, CodeBlock
    from treadle.core.errors import (
        ConfigError,
        DeadlineExceeded,
        EngineError,
        EnvError,
        GraderError,
        InfraError,
        ModelError,
        PromptTooLong,
        RenderError,
        SandboxError,
        StoreError,
        ToolError,
        TreadleError,
    )
    from treadle.core.events import Event, Listener
    from treadle.core.messages import Message, ToolCall, ToolSpec, assistant, system, user
    from treadle.core.outcome import Origin, Outcome, Status
    from treadle.envs.cassette import CassetteConfig
    from treadle.envs.env import Env, EnvContext, Fork
    from treadle.envs.host import HostConfig
    from treadle.envs.snapshots import SnapshotsConfig
    from treadle.envs.step import Step, ToolResult
    from treadle.envs.task import ListTaskset, Task, Taskset
    from treadle.envs.tools import tool
    from treadle.inference.config import EngineConfig
    from treadle.learner.config import LearnerConfig
    from treadle.models.policy import Policy
    from treadle.pipeline.coldstart import ColdStartConfig
    from treadle.pipeline.config import PipelineConfig
    from treadle.pipeline.evaluation import Evaluation, EvaluationConfig, ValidationConfig
    from treadle.recipes.compose import compose
    from treadle.recipes.front import Played, evaluate, rollout, train
    from treadle.recipes.memory import MemoryConfig
    from treadle.recipes.recipe import Algorithm, ColdStartPlan, Recipe
    from treadle.recipes.run import Run, RunResult
    from treadle.recipes.world import CodeWorld, ShellWorld, World
    from treadle.rendering.fenced import FencedParser
    from treadle.rendering.hermes import HermesParser
    from treadle.rendering.plain import PlainParser
    from treadle.trajectory.forest import Forest, center
    from treadle.trajectory.group import Group, Rollout
    from treadle.trajectory.segment import Author, Segment
    from treadle.trajectory.store import read_group, read_groups

__version__ = "0.1.0"

__all__ = [
    "Action", "Algorithm", "Author", "CassetteConfig", "CodeBlock", "CodeWorld", "ColdStartConfig", "ColdStartPlan",
    "ConfigError", "CreditRule", "DeadlineExceeded", "DemonstrationPlan", "DrGrpo", "EngineConfig", "EngineError",
    "Env", "EnvContext", "EnvError", "Evaluation", "EvaluationConfig", "Event", "FencedParser", "Forest", "Fork",
    "GraderError", "Group", "Grpo", "HermesParser", "HostConfig", "Imitation", "InfraError", "LearnerConfig",
    "ListTaskset", "Listener", "Loss", "LossTerms", "MemoryConfig", "Message", "ModelError", "Nll", "NodeCredit",
    "Origin", "Outcome", "PathCredit", "PipelineConfig", "PlainParser", "Played", "Policy", "PpoClip",
    "PromptTooLong", "Recipe", "RenderError", "Rewards", "Rloo", "Rollout", "RolloutLimits", "Run", "RunResult",
    "SandboxError", "Segment", "SeqMeanTokenMean", "SeqSumConst", "ShellWorld", "SnapshotsConfig", "Status", "Step",
    "StoreError", "Task", "Taskset", "TokenMean", "ToolCall", "ToolError", "ToolResult", "ToolSpec", "TreadleError",
    "ValidationConfig", "World", "__version__", "assistant", "center", "compose", "evaluate", "read_group",
    "read_groups", "rollout", "system", "tool", "train", "user",
]

_HOME: dict[str, tuple[str, ...]] = {
    "agents.demonstrator": ("DemonstrationPlan",),
    "agents.limits": ("Rewards", "RolloutLimits"),
    "algorithms.aggregation": ("SeqMeanTokenMean", "SeqSumConst", "TokenMean"),
    "algorithms.credit": ("CreditRule", "NodeCredit", "PathCredit"),
    "algorithms.group_baseline": ("DrGrpo", "Grpo", "Rloo"),
    "algorithms.imitation": ("Imitation",),
    "algorithms.losses": ("Loss", "LossTerms", "Nll", "PpoClip"),
    "core.actions": ("Action", "CodeBlock"),
    "core.errors": (
        "ConfigError", "DeadlineExceeded", "EngineError", "EnvError", "GraderError", "InfraError", "ModelError",
        "PromptTooLong", "RenderError", "SandboxError", "StoreError", "ToolError", "TreadleError",
    ),
    "core.events": ("Event", "Listener"),
    "core.messages": ("Message", "ToolCall", "ToolSpec", "assistant", "system", "user"),
    "core.outcome": ("Origin", "Outcome", "Status"),
    "envs.cassette": ("CassetteConfig",),
    "envs.env": ("Env", "EnvContext", "Fork"),
    "envs.host": ("HostConfig",),
    "envs.snapshots": ("SnapshotsConfig",),
    "envs.step": ("Step", "ToolResult"),
    "envs.task": ("ListTaskset", "Task", "Taskset"),
    "envs.tools": ("tool",),
    "inference.config": ("EngineConfig",),
    "learner.config": ("LearnerConfig",),
    "models.policy": ("Policy",),
    "pipeline.coldstart": ("ColdStartConfig",),
    "pipeline.config": ("PipelineConfig",),
    "pipeline.evaluation": ("Evaluation", "EvaluationConfig", "ValidationConfig"),
    "recipes.compose": ("compose",),
    "recipes.front": ("Played", "evaluate", "rollout", "train"),
    "recipes.memory": ("MemoryConfig",),
    "recipes.recipe": ("Algorithm", "ColdStartPlan", "Recipe"),
    "recipes.run": ("Run", "RunResult"),
    "recipes.world": ("CodeWorld", "ShellWorld", "World"),
    "rendering.fenced": ("FencedParser",),
    "rendering.hermes": ("HermesParser",),
    "rendering.plain": ("PlainParser",),
    "trajectory.forest": ("Forest", "center"),
    "trajectory.group": ("Group", "Rollout"),
    "trajectory.segment": ("Author", "Segment"),
    "trajectory.store": ("read_group", "read_groups"),
}
"""Module below `treadle` to the public names that live in it."""
_MODULE = {name: module for module, names in _HOME.items() for name in names}



def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"treadle.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
