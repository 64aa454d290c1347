"""tree_pg: its numbers on small trees, its unbiasedness, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from treadle.algorithms.aggregation import SeqMeanTokenMean, SeqSumConst, TokenMean
from treadle.algorithms.conditions import unmet
from treadle.algorithms.credit import NodeCredit
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import LOSSES, PpoClip
from treadle.algorithms.tree_pg import TreePg
from treadle.core.errors import ConfigError
from treadle.core.outcome import limit
from treadle.testing.forests import Grown, Node, action, grow, hand_tree, observation
from treadle.testing.known_gradients import (
    Table,
    check_unbiased,
    drawn_tree,
    every_tree,
    gradient,
    measured,
    three_turn,
    true_gradient,
    two_turn,
)
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author, Why


def judged(grown: Grown, *names: str, rule: TreePg | None = None) -> tuple[list[float], list[float]]:
    """Advantages and weights of these segments."""
    forest = Forest.of([grown.group])
    credit = (rule or TreePg())(forest)
    rows = [forest.segments.index(grown.names[name]) for name in names]
    assert credit.weight is not None
    return credit.advantage[rows].tolist(), credit.weight[rows].tolist()


def test_the_hand_tree_has_the_numbers_of_the_reference():
    advantage, weight = judged(hand_tree(), "a1", "a2", "a3", "b1")
    np.testing.assert_allclose(advantage, [0.5, 1.0, -1.0, -0.5], atol=1e-12)
    np.testing.assert_allclose(weight, [0.5, 0.25, 0.25, 0.5], atol=1e-12)


def test_an_action_without_siblings_inherits_what_its_predecessor_was_compared_with():
    c1 = action("c1", 1, observation("e2", 1, action("c2", 1, reward=1.0)))
    grown = grow(observation("p", 1, c1, action("b", 1, reward=0.25)))
    advantage, weight = judged(grown, "c1", "c2", "b")
    np.testing.assert_allclose(advantage, [0.75, 0.75, -0.75], atol=1e-12)
    np.testing.assert_allclose(weight, [0.5, 0.5, 0.5], atol=1e-12)


def test_a_root_without_siblings_is_compared_with_what_was_known_before():
    forks = observation("e1", 1, action("b", 1, reward=1.0), action("c", 1))
    grown = grow(observation("p", 1, action("a", 1, forks)))
    assert judged(grown, "a", "b", "c")[0] == [0.5, 1.0, -1.0]
    assert judged(grown, "a", "b", "c", rule=TreePg(root=0.4))[0] == pytest.approx([0.1, 1.0, -1.0])


def test_a_rollout_that_ends_where_others_go_on_is_a_sibling():
    """The turn limit of the world ends one of three right behind the observation."""
    ended = observation("stop", 1)
    ended = replace(ended, end=limit("turns"))
    step = action("a", 1, observation("e1", 1, action("b", 1, reward=1.0), action("c", 1), ended))
    advantage, _ = judged(grow(observation("p", 1, step, action("d", 1))), "a", "b", "c")
    np.testing.assert_allclose(advantage, [1 / 3, 1.0, -0.5], atol=1e-12)


def test_a_context_break_does_not_compete_with_what_it_broke_from():
    cut = Node(
        name="cut", author=Author.ENV, ids=(7,), why=Why.COMPACT, context="p", children=(action("a2", 1, reward=1.0),)
    )
    whole = grow(observation("p", 1, action("a1", 1, observation("e", 1, action("a2", 1, reward=1.0))), action("b", 1)))
    broken = grow(observation("p", 1, action("a1", 1, cut), action("b", 1)))
    assert judged(whole, "a1", "a2", "b") == judged(broken, "a1", "a2", "b")


def test_a_group_of_equals_earns_nothing():
    for group in random_groups(5, 6, Growth(failure=0.0, breaks=0.1)):
        forest = Forest.of([group.like(records=[])])
        assert not TreePg()(forest).advantage.any()


# -- without bias ----------------------------------------------------------------------------------------------


def test_all_trees_together_have_probability_one():
    for problem in (two_turn(), three_turn()):
        assert sum(p for p, _ in every_tree(problem, Table(problem))) == pytest.approx(1.0, abs=1e-12)


def test_the_mean_gradient_of_tree_pg_is_the_policy_gradient():
    assert check_unbiased(TreePg()) is None
    assert check_unbiased(TreePg(root=0.7)) is None


def test_on_policy_a_clipped_ratio_and_the_plain_gradient_are_one():
    plain = measured(TreePg(), three_turn(), loss=LOSSES["reinforce"]())
    np.testing.assert_allclose(plain.ratios, 1.0, atol=1e-6)


def test_flattening_an_adaptively_forked_tree_follows_another_gradient():
    found = measured(Grpo(std=False), two_turn(), aggregation=SeqMeanTokenMean())
    assert found.cosine == pytest.approx(0.91, abs=0.01)
    with pytest.raises(AssertionError, match=r"rule grpo, two_turn: E\[gradient\] / true is"):
        check_unbiased(Grpo(std=False), aggregation=SeqSumConst(constant=10.0))


def test_a_denominator_that_depends_on_the_tree_turns_the_gradient():
    found = measured(TreePg(), two_turn(), aggregation=TokenMean())
    assert np.abs(found.turned - 1).max() > 0.1


def test_sampled_trees_agree_with_the_enumerated_ones():
    problem, rng = two_turn(), np.random.default_rng(3)
    table = Table(problem)
    trees = [drawn_tree(problem, table, rng) for _ in range(600)]
    found = gradient(
        trees, table, TreePg(), aggregation=SeqSumConst(constant=float(len(trees))), loss=PpoClip()
    )
    np.testing.assert_allclose(found, true_gradient(problem, table), atol=4 * 0.11 / 600**0.5)


# -- refusals --------------------------------------------------------------------------------------------------


def test_scaling_by_a_standard_deviation_is_refused():
    with pytest.raises(ConfigError, match=r"tree_pg\.std: got true, expected false"):
        TreePg(std=True)


@pytest.mark.parametrize("aggregation", [TokenMean(), SeqMeanTokenMean()])
def test_a_denominator_that_is_not_constant_is_refused(aggregation):
    said = unmet(TreePg(), aggregation=aggregation)
    assert said is not None
    assert f"algorithm.aggregation={aggregation.name} contradicts algorithm.rule=tree_pg" in said
    assert "set algorithm.aggregation=seq_sum_const" in said


def test_a_branching_policy_that_forks_after_the_fact_is_refused():
    said = unmet(TreePg(), aggregation=SeqSumConst(constant=1.0), branching="expansion", declared=False)
    assert said is not None
    assert said.startswith("branching=expansion contradicts algorithm.rule=tree_pg")
    assert unmet(TreePg(), aggregation=SeqSumConst(constant=1.0), branching="entropy", declared=True) is None


def test_a_rule_without_demands_fits_every_run():
    assert unmet(Grpo(), aggregation=TokenMean(), branching="expansion", declared=False) is None


def test_a_rule_of_a_users_own_may_make_the_same_demands():
    class Fixed(Grpo):
        constant_denominator = True
        fanout_before_children = False

        def __call__(self, forest: Forest) -> NodeCredit:  # type: ignore[override]
            return NodeCredit(advantage=forest.reward)

    assert "algorithm.rule=grpo" in (unmet(Fixed(), aggregation=TokenMean()) or "")
    assert unmet(Fixed(), aggregation=SeqSumConst(constant=1.0), branching="late", declared=False) is None
