"""What rollouts make of a start that they share reaches the update."""

from __future__ import annotations

import pytest

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import PATH_SUM
from treadle.algorithms.group_baseline import DrGrpo
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.shared import Mean, Shared
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.models.policy import Policy
from treadle.pipeline.trainer import LearnerTrainer
from treadle.testing.forests import hand_tree


def loss_under(policy: Policy, shared: Shared) -> float:
    """On the hand tree every log-prob is recorded as -1; nothing is learned, so the weights stay as they are."""
    learner = Learner(policy, LearnerConfig(lr=1e-12, max_skew=None))
    trainer = LearnerTrainer(
        learner, rule=DrGrpo(), aggregation=TokenMean(), loss=PpoClip(eps_low=0.99, eps_high=99.0, dual=None),
        shared=shared,
    )
    return trainer.train([hand_tree().group]).loss


def test_a_trainer_collapses_credit_as_it_is_told(policy: Policy) -> None:
    summed, mean = loss_under(policy, PATH_SUM), loss_under(policy, Mean())
    assert summed != pytest.approx(mean, rel=1e-3)
    assert summed == pytest.approx(loss_under(policy, PATH_SUM), rel=1e-4)
