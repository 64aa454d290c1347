"""What a learner says it will hold is what PyTorch's allocator hands out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core import compute
from treadle.learner.config import LearnerConfig
from treadle.learner.footprint import footprint, kept_per_token
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models import Policy, build_tiny
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=128, heads=4, kv_heads=2, layers=4)


def whole() -> PackedBatch:
    forest = Forest.of(random_groups(0, 8, Growth(vocabulary=200, failure=0.0)))
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    (batch,) = pack(forest, collapsed, denominator=denominator, budget_tokens=100_000)
    return batch


def most_held(work: Any) -> int:
    """Bytes that PyTorch handed out during `work`, at their height, beyond what was there before."""

    def watched() -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            work()
        told = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        held = most = 0
        for event in sorted(told, key=lambda event: event.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        return most

    return compute.run(watched)


@pytest.mark.parametrize(("top_layers", "recompute"), [(None, False), (2, False), (None, True)])
def test_a_pack_takes_what_the_formula_says(folder: Path, top_layers: int | None, recompute: bool) -> None:
    config = LearnerConfig(top_layers=top_layers, memo_tokens=0, recompute=recompute)
    policy = Policy.load(folder)
    expected = footprint(policy, config)
    learner, batch = Learner(policy, config), whole()
    learner.accumulate(batch, PpoClip())  # gradients are there from now on
    measured = most_held(lambda: learner.accumulate(batch, PpoClip()))
    assert batch.tokens > 300
    assert 0.6 * expected.pack(batch.tokens) < measured <= expected.pack(batch.tokens)


def test_the_fixed_part_is_gradients_moments_and_memo(folder: Path) -> None:
    config = LearnerConfig(top_layers=2, memo_tokens=1000)
    policy = Policy.load(folder)
    said = footprint(policy, config)
    learner = Learner(policy, config)
    learner.update([whole()], PpoClip())
    trained = [p for p in policy.module.parameters() if p.grad is not None]
    assert said.gradients == sum(p.grad.nbytes for p in trained if p.grad is not None)
    moments = [t for state in learner.optimiser.state.values() for t in state.values() if t.ndim]
    assert said.moments == sum(t.nbytes for t in moments)
    assert policy.memo is not None
    assert said.memo >= policy.memo._states.nbytes == 1000 * 128 * 4
    assert said.fixed == said.gradients + said.moments + said.memo


def test_layers_that_do_not_train_keep_nothing(folder: Path) -> None:
    policy = Policy.load(folder)
    kept = {}
    for layers in (4, 2, 1):
        policy.train(layers)
        kept[layers] = compute.run(lambda: kept_per_token(policy))
    each = (kept[4] - kept[2]) / 2
    assert kept[2] - kept[1] == pytest.approx(each, rel=0.02)
    assert kept[1] < 1.5 * each


def test_a_path_in_runs_takes_keys_values_and_their_gradients_besides_a_pack(folder: Path) -> None:
    config = LearnerConfig(tokens_per_pack=64)
    policy = Policy.load(folder)
    said = footprint(policy, config)
    learner, batch = Learner(policy, config), whole()
    learner.accumulate(batch, PpoClip())
    measured = most_held(lambda: learner.accumulate(batch, PpoClip()))
    assert said.shelf(batch.tokens, 64) == batch.tokens * 2 * policy.dims.kv_bytes(4)
    assert said.shelf(64, 64) == 0
    assert 0.6 * said.pack(64) + said.shelf(batch.tokens, 64) < measured
    assert measured <= said.pack(64) + said.shelf(batch.tokens, 64) < 0.6 * said.pack(batch.tokens)


def test_the_largest_pack_that_fits_is_the_inverse(folder: Path) -> None:
    said = footprint(Policy.load(folder), LearnerConfig())
    assert said.tokens(said.pack(300)) == 300
    assert said.tokens(said.pack(300) - 1) == 299
    assert torch.get_default_dtype() == torch.float32
