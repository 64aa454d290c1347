"""The public namespace: what `import treadle` offers, name by name. A change here is a change that users see."""

from __future__ import annotations

import ast
import subprocess
import sys

from house_rules import SRC

import treadle

NAMES = [
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
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert treadle.__all__ == sorted(NAMES)


def test_every_public_name_says_what_it_is() -> None:
    named = {name: getattr(treadle, name) for name in NAMES if name != "__version__"}
    assert [name for name, value in named.items() if not (value.__doc__ or "").strip()] == []


def test_type_checkers_see_the_same_names_from_the_same_places() -> None:
    tree = ast.parse((SRC / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {name: f"treadle.{treadle._MODULE[name]}" for name in NAMES if name != "__version__"}


def test_no_public_name_is_the_name_of_a_room() -> None:
    """A room that is imported becomes an attribute of the package and would hide the name."""
    assert set(NAMES) & {path.stem for path in SRC.iterdir()} == set()


def test_a_name_loads_no_more_than_its_room() -> None:
    code = (
        "import sys, treadle\nassert len(dir(treadle)) > 50\n"
        "treadle.Env, treadle.tool, treadle.Task, treadle.ConfigError\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
