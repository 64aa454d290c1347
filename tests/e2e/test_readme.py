"""What the README shows is code that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import treadle

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_environment_makes_a_recipe_and_plays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    trained: list[treadle.Recipe] = []
    monkeypatch.setattr(treadle, "train", trained.append)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    (recipe,) = trained
    played = treadle.rollout(recipe.changed({"model": "tiny", "runs": str(tmp_path), "engine.context": 1024,
                                             "limits.max_context": 1024, "limits.max_tokens_per_turn": 8}))
    (rollout,) = played.group.rollouts.values()
    assert rollout.outcome is not None
    assert not rollout.outcome.failed, rollout.outcome
    assert rollout.reward == 0.0
