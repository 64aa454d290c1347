"""A pack that is cut pays the same edges, and memory that runs short changes nothing but the packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.memory import Memory
from treadle.learner.config import LearnerConfig
from treadle.learner.cut import cut
from treadle.learner.learner import LEAST_PACK, Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest


def packed(seed: int, budget: int = 10_000) -> list[PackedBatch]:
    forest = Forest.of(random_groups(seed, 4, Growth(vocabulary=200, failure=0.0)))
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=budget)


def gradient(policy: Policy, packs: list[PackedBatch]) -> torch.Tensor:
    learner = Learner(policy, LearnerConfig(head_rows=16))
    for batch in packs:
        learner.accumulate(batch, PpoClip())
    found = torch.cat([p.grad.flatten().clone() for p in policy.module.parameters() if p.grad is not None])
    learner._drop_gradients()
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [1, 40, 100])
def test_the_parts_have_the_gradient_of_the_whole(policy64: Policy, seed: int, budget: int) -> None:
    (whole,) = packed(seed)
    parts = cut(whole, budget)
    assert len(parts) > 1
    assert sum(part.edges for part in parts) == whole.edges
    assert sum(part.trained for part in parts) == whole.trained
    assert max(len(part.nodes) for part in parts) > 1
    expected = gradient(policy64, [whole])
    assert float((gradient(policy64, parts) - expected).norm() / expected.norm()) < 1e-12


def test_parts_keep_to_the_budget_and_know_their_nodes() -> None:
    (whole,) = packed(1)
    for part in cut(whole, 100):
        starts = np.array([node.start for node in part.nodes])
        lengths = np.array([node.length for node in part.nodes])
        assert part.tokens <= 100
        assert part.tokens == lengths.sum()
        assert np.array_equal(starts, np.concatenate([[0], lengths.cumsum()[:-1]]))
        assert all(node.parent < i for i, node in enumerate(part.nodes))


def test_a_pack_that_fits_is_not_touched() -> None:
    (whole,) = packed(0)
    assert cut(whole, whole.tokens) == [whole]


def test_an_update_for_which_memory_runs_short_is_the_same_update_in_smaller_packs(tiny_folder: Path) -> None:
    asked: list[int] = []
    told: list[Any] = []

    def resident() -> int:
        asked.append(1)
        return 1000 if len(asked) < 4 else 0

    memory = Memory(1000, resident=resident)
    memory.tell = told.append
    config = LearnerConfig(lr=1e-3, tokens_per_pack=128)
    loose, tight = Policy.load(tiny_folder), Policy.load(tiny_folder)
    plain = Learner(loose, config).update(packed(2, 128), PpoClip())
    learner = Learner(tight, config, memory=memory)
    seen: list[tuple[int, int]] = []
    report = learner.update(packed(2, 128), PpoClip(), between=lambda done, of: seen.append((done, of)))
    assert learner.pack_tokens == 64
    assert report.packs > plain.packs
    assert seen[-1] == (report.packs, report.packs)
    assert [facts["tokens_per_pack"] for facts in told][-1] == learner.pack_tokens
    assert (report.tokens_trained, report.version) == (plain.tokens_trained, plain.version)
    assert report.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)
    assert report.loss == pytest.approx(plain.loss, rel=1e-5)
    assert learner.config == config


def test_want_of_memory_cuts_packs_to_a_least_size(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(tokens_per_pack=256), memory=Memory(1000, resident=lambda: 2000))
    for _ in range(2):
        learner.update(packed(0, 256), PpoClip())
    assert learner.pack_tokens == LEAST_PACK
