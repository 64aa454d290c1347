"""A schedule whose length is left open is as long as the stage that trains."""

from dataclasses import replace

import pytest
from words_recipe import words

from treadle import LearnerConfig, train


def linear(**settings):
    """The words recipe with linear schedules in both stages."""
    made = words(evaluation=0, updates=3)
    plan = replace(made.coldstart, learner=LearnerConfig(lr=1e-3, schedule="linear"))
    return replace(made, coldstart=plan, learner=LearnerConfig(lr=2e-3, schedule="linear", **settings))


def test_both_stages_fall_over_their_own_updates(ears):
    train(linear(), listeners=[ears], view="none")
    cold = ears.named("coldstart.update")
    assert [e["lr"] for e in cold] == pytest.approx([1e-3 * (1 - k / len(cold)) for k in range(len(cold))])
    assert len(cold) == cold[0]["updates"] == 2
    assert [e["lr"] for e in ears.named("update.done")] == pytest.approx([2e-3, 2e-3 * 2 / 3, 2e-3 / 3])


def test_a_length_that_a_recipe_sets_is_kept(ears):
    train(linear(total_updates=30), listeners=[ears], view="none")
    assert [e["lr"] for e in ears.named("update.done")] == pytest.approx([2e-3 * (1 - k / 30) for k in range(3)])
