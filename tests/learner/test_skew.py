"""The skew meter, and what a learner does when engine and learner are not of one mind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import PpoClip
from treadle.core.errors import ConfigError, WeightMismatch
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.learner.publisher import Publisher
from treadle.learner.skew import SkewMeter
from treadle.models import Policy
from treadle.models.published import read
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author


def fresh(learner: Learner, apart: float = 0.0) -> list[PackedBatch]:
    """Packs whose recorded log-probs are `apart` from those of the policy now."""
    forest = Forest.of(random_groups(1, 3, Growth(vocabulary=200, failure=0.0)))
    now = learner.logprobs(forest)
    segments = tuple(
        dataclasses.replace(s, logprobs=now[s.id] + apart) if s.author is Author.POLICY else s for s in forest.segments
    )
    forest = dataclasses.replace(forest, segments=segments)
    collapsed, denominator = assign(forest, Grpo(), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=40)


def test_the_meter_reads_mean_and_most_of_what_was_sampled() -> None:
    meter = SkewMeter()
    assert meter.read() is None
    meter.add(torch.tensor([-1.0, -2.0]), torch.tensor([torch.nan, -2.5]))
    meter.add(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.25, torch.nan]))
    skew = meter.read()
    assert skew is not None
    assert (skew.mean, skew.most, skew.edges) == (0.25, 0.5, 3)


def test_a_bound_that_is_no_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.max_skew: got 0, expected > 0"):
        LearnerConfig(max_skew=0)


def test_fresh_samples_of_the_same_policy_have_next_to_no_skew(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig())
    report = learner.update(fresh(learner), PpoClip(), fresh=True)
    assert report.skew is not None
    assert 0 <= report.skew.mean <= report.skew.most < 1e-5
    assert report.skew.edges == report.tokens_trained


def test_samples_of_another_policy_stop_the_update_before_it_changes_anything(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(lr=1e-2, max_skew=0.01))
    before = [p.detach().clone() for p in policy.module.parameters()]
    with pytest.raises(WeightMismatch, match=r"by 0\.02 nats on average and 0\.02 at most over \d+ tokens, .*=0\.01"):
        learner.update(fresh(learner, apart=-0.02), PpoClip(), fresh=True)
    assert (policy.version, learner.updates) == (0, 0)
    assert all(a.equal(b) for a, b in zip(before, policy.module.parameters(), strict=True))
    assert all(p.grad is None or not p.grad.any() for p in policy.module.parameters())


def test_without_a_bound_the_skew_is_only_reported(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(max_skew=None))
    report = learner.update(fresh(learner, apart=-0.02), PpoClip(), fresh=True)
    assert report.skew is not None
    assert report.skew.mean == pytest.approx(0.02, abs=1e-4)


def test_samples_of_older_versions_are_not_judged(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig())
    assert learner.update(fresh(learner, apart=-0.02), PpoClip()).skew is None


def test_a_learner_with_a_publisher_writes_its_weights_and_keeps_the_last_two(policy: Policy, tmp_path: Path) -> None:
    with Publisher(tmp_path / "weights") as publisher:
        learner = Learner(policy, LearnerConfig(), publisher=publisher)
        learner.publish()
        learner.update(fresh(learner), PpoClip())
        ref = learner.publish()
        assert (ref.version, read(ref).version) == (1, 1)
        learner.update(fresh(learner), PpoClip())
        learner.publish()
        held = sorted(path.name for path in (tmp_path / "weights").iterdir())
        assert held == ["version-000001", "version-000002"]  # the engine may still be at the one before
    assert not (tmp_path / "weights").exists()
