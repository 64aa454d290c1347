"""Training the top of a model: the same gradients there, nothing below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError, ModelError
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest


def packs() -> list[PackedBatch]:
    forest = Forest.of(random_groups(3, 3, Growth(vocabulary=200, failure=0.0)))
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=60)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    for batch in packs():
        learner.accumulate(batch, PpoClip())
    return {n: p.grad.clone() for n, p in learner.policy.module.named_parameters() if p.grad is not None}


def is_top(name: str) -> bool:
    """The last of the tiny model's layers, or the final norm."""
    return name.startswith(("model.layers.1.", "model.norm."))


def test_the_top_gets_the_gradients_of_a_whole_update_and_the_rest_none(tiny_folder: Path) -> None:
    whole = gradients(Learner(Policy.load(tiny_folder), LearnerConfig()))
    top = gradients(Learner(Policy.load(tiny_folder), LearnerConfig(top_layers=1)))
    assert set(top) == {name for name in whole if is_top(name)}
    assert len(top) == 10
    for name, gradient in top.items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-5, atol=1e-8)


def test_an_update_changes_the_top_alone(policy: Policy) -> None:
    before = {n: p.detach().clone() for n, p in policy.module.named_parameters()}
    report = Learner(policy, LearnerConfig(lr=1e-3, top_layers=1)).update(packs(), PpoClip())
    changed = {n for n, p in policy.module.named_parameters() if not torch.equal(p, before[n])}
    assert report.version == 1
    assert changed == {name for name in before if is_top(name)}


def test_below_the_top_no_backward_runs(policy: Policy) -> None:
    seen: dict[int, bool] = {}

    def note(index: int) -> Any:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            seen[index] = (output[0] if isinstance(output, tuple) else output).requires_grad

        return hook

    for index, layer in enumerate(policy.module.model.layers):
        layer.register_forward_hook(note(index))
    Learner(policy, LearnerConfig(top_layers=1)).update(packs(), PpoClip())
    assert seen == {0: False, 1: True}


def test_the_learner_that_was_made_last_has_the_say(policy: Policy) -> None:
    Learner(policy, LearnerConfig(top_layers=1))
    assert len(gradients(Learner(policy, LearnerConfig()))) == len(list(policy.module.parameters()))
    Learner(policy, LearnerConfig(top_layers=1))
    assert all(p.grad is None for n, p in policy.module.named_parameters() if not is_top(n))


def test_more_layers_than_the_model_has_are_refused(policy: Policy) -> None:
    with pytest.raises(ModelError, match=r"learner\.top_layers=3, but it has 2 layers"):
        Learner(policy, LearnerConfig(top_layers=3))


def test_no_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.top_layers: got 0, expected >= 1"):
        LearnerConfig(top_layers=0)
