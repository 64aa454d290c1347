"""The bias experiment: what it breaks on purpose shows."""

import numpy as np
import pytest
from bench.tree_bias import GroupMean, OwnRoot, RolloutMean, Scaled, finished_chains

from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.tree_pg import TreePg
from treadle.testing.known_gradients import measured, three_turn, two_turn


def test_flattening_gives_the_figures_of_the_published_experiment():
    found = measured(Grpo(std=False), two_turn(), aggregation=RolloutMean())
    np.testing.assert_allclose(found.ratios, [0.556, 1.328, 0.448], atol=1e-3)


def test_finished_chains_are_all_of_them_and_their_forks_turn_the_gradient():
    trees = finished_chains(two_turn())
    assert sum(p for p, _ in trees) == pytest.approx(1.0, abs=1e-12)
    assert measured(TreePg(), two_turn(), trees=trees).bias > 0.03


@pytest.mark.parametrize(("rule", "problem"), [(Scaled(), two_turn), (OwnRoot(), three_turn), (GroupMean(), two_turn)])
def test_what_breaks_a_condition_is_seen(rule, problem):
    assert measured(rule, problem()).bias > 0.05
