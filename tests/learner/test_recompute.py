"""Layers that compute again for the backward: the same gradients, each trained layer exactly twice, far less kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core import compute
from treadle.learner.config import LearnerConfig
from treadle.learner.footprint import kept_per_token
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models import CausalPlan, Policy, build_tiny
from treadle.models.attention import Survey
from treadle.models.recompute import _Twice
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest

LAYERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=64, heads=4, kv_heads=2, layers=LAYERS)


def packs() -> list[PackedBatch]:
    forest = Forest.of(random_groups(3, 3, Growth(vocabulary=200, failure=0.0)))
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=60)


def gradients(policy: Policy, config: LearnerConfig, *, times: int = 1) -> dict[str, torch.Tensor]:
    learner = Learner(policy, config)
    for _ in range(times):
        learner._drop_gradients()
        for batch in packs():
            learner.accumulate(batch, PpoClip())
    found = {n: p.grad.clone() for n, p in policy.module.named_parameters() if p.grad is not None}
    learner._drop_gradients()
    return found


@pytest.mark.parametrize("attention", ["node", "sdpa"])
@pytest.mark.parametrize("top_layers", [None, 1])
def test_gradients_are_the_same(policy64: Policy, top_layers: int | None, attention: str) -> None:
    config = LearnerConfig(top_layers=top_layers, attention=attention, memo_tokens=0)
    plain = gradients(policy64, config)
    again = gradients(policy64, LearnerConfig(
        top_layers=top_layers, attention=attention, memo_tokens=0, recompute=True
    ))
    assert again.keys() == plain.keys()
    for name, gradient in again.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-12, atol=1e-15)


def test_above_a_memo_they_are_the_same_to_the_last_bit(folder: Path) -> None:
    """Twice, so that the second time begins at the boundary."""
    plain, again = (
        gradients(Policy.load(folder), LearnerConfig(top_layers=2, recompute=recompute), times=2)
        for recompute in (False, True)
    )
    assert len(plain) == 2 * 9 + 1
    assert all(torch.equal(gradient, plain[name]) for name, gradient in again.items())


@pytest.mark.parametrize(("top_layers", "calls"), [(None, [2, 2, 2, 2]), (1, [1, 1, 1, 2])])
def test_each_layer_that_trains_runs_exactly_twice(folder: Path, top_layers: int | None, calls: list[int]) -> None:
    policy, seen = Policy.load(folder), [0] * LAYERS
    Learner(policy, LearnerConfig(top_layers=top_layers, recompute=True, memo_tokens=0))
    for index, layer in enumerate(policy.module.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, index=index: seen.__setitem__(index, seen[index] + 1))
    survey, at = Survey(CausalPlan()), torch.arange(20)
    policy.hidden(at, at, survey).sum().backward()
    assert seen == calls
    assert [survey.layers.count(layer) for layer in range(LAYERS)] == calls


def test_nothing_runs_twice_where_no_gradient_is_recorded(folder: Path) -> None:
    policy = Policy.load(folder)
    Learner(policy, LearnerConfig(recompute=True))
    survey, at = Survey(CausalPlan()), torch.arange(20)
    with torch.inference_mode():
        policy.hidden(at, at, survey)
    assert survey.layers == list(range(LAYERS))


def test_less_than_a_sixth_is_kept_for_the_backward(folder: Path) -> None:
    policy, kept = Policy.load(folder), {}
    for recomputes in (False, True):
        policy.train(None, recomputes=recomputes)
        kept[recomputes] = compute.run(lambda: kept_per_token(policy))
    assert kept[True] * 6 < kept[False]
    assert kept[True] >= LAYERS * 64 * 4  # the inputs of the layers


def test_the_learner_that_was_made_last_has_the_say(folder: Path) -> None:
    policy = Policy.load(folder)
    Learner(policy, LearnerConfig(recompute=True))
    Learner(policy, LearnerConfig(recompute=True))
    Learner(policy, LearnerConfig())
    assert not any(isinstance(layer.forward, _Twice) for layer in policy.module.model.layers)
