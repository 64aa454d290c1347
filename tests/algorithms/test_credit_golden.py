"""The numbers of the literature's formulas on small hand-made groups."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.algorithms.aggregation import SeqMeanTokenMean, SeqSumConst, TokenMean
from treadle.algorithms.credit import NodeCredit, PathCredit, assign
from treadle.algorithms.rules import RULES
from treadle.testing.forests import Node, action, grow, hand_tree, observation
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author

REWARDS, LENGTHS = [1.0, 0.0, 0.0, 1.0, 0.0], [2, 4, 1, 3, 2]


def flat_group() -> Forest:
    plays = [action(f"a{i}", n, reward=r) for i, (r, n) in enumerate(zip(REWARDS, LENGTHS, strict=True))]
    return Forest.of([grow(observation("prompt", 3, *plays)).group])


def test_grpo_divides_by_the_sample_standard_deviation():
    expected = [1.095443, -0.730295, -0.730295, 1.095443, -0.730295]
    np.testing.assert_allclose(RULES["grpo"]()(flat_group()).advantage, expected, atol=1e-6)


def test_dr_grpo_only_centres():
    np.testing.assert_allclose(RULES["dr_grpo"]()(flat_group()).advantage, [0.6, -0.4, -0.4, 0.6, -0.4], atol=1e-12)


def test_grpo_without_std_is_dr_grpo():
    forest = flat_group()
    np.testing.assert_array_equal(
        RULES["grpo"](std=False)(forest).advantage, RULES["dr_grpo"]()(forest).advantage
    )


def test_rloo_compares_with_the_others():
    np.testing.assert_allclose(RULES["rloo"]()(flat_group()).advantage, [0.75, -0.5, -0.5, 0.75, -0.5], atol=1e-12)


def test_the_hand_tree_gives_grpo_and_rloo_of_its_three_rollouts():
    forest = Forest.of([hand_tree().group])
    np.testing.assert_allclose(RULES["grpo"]()(forest).advantage, [1.154699, -0.577349, -0.577349], atol=1e-6)
    np.testing.assert_allclose(RULES["rloo"]()(forest).advantage, [1.0, -0.5, -0.5], atol=1e-12)


def test_collapse_of_the_hand_tree_sums_over_the_rollouts_through_a_segment():
    grown = hand_tree()
    forest = Forest.of([grown.group])
    collapsed = RULES["grpo"]()(forest).collapse(forest, np.ones(3))
    rows = [forest.segments.index(grown.names[name]) for name in ("prompt", "a1", "e1", "a2", "a3", "b1")]
    np.testing.assert_allclose(collapsed.pos[rows], [0, 1.155, 0, 1.155, 0, 0], atol=1e-3)
    np.testing.assert_allclose(collapsed.neg[rows], [0, -0.577, 0, 0, -0.577, -0.577], atol=1e-3)
    np.testing.assert_array_equal(collapsed.mass[rows], [0, 2, 0, 1, 1, 1])


def test_groups_do_not_share_a_baseline():
    low = observation("prompt", 2, action("a", 1, reward=0.0), action("b", 1, reward=1.0))
    high = observation("prompt", 2, action("a", 1, reward=10.0), action("b", 1, reward=11.0))
    forest = Forest.of([grow(low, id="g0").group, grow(high, id="g1", ticket=1).group])
    np.testing.assert_allclose(RULES["dr_grpo"]()(forest).advantage, [-0.5, 0.5, -0.5, 0.5])


def test_a_group_of_equals_earns_nothing():
    forest = Forest.of([grow(observation("p", 2, action("a", 1, reward=1.0), action("b", 2, reward=1.0))).group])
    for name in ("grpo", "dr_grpo", "rloo"):
        np.testing.assert_array_equal(RULES[name]()(forest).advantage, [0.0, 0.0])


def test_a_group_of_one_earns_nothing_from_comparison():
    forest = Forest.of([grow(observation("p", 2, action("a", 1, reward=1.0))).group])
    np.testing.assert_array_equal(RULES["grpo"]()(forest).advantage, [0.0])


def test_imitation_trains_each_demonstrated_action_once_and_nothing_sampled():
    shown = Node(name="d", author=Author.DEMO, ids=(5, 6))
    forest = Forest.of([grow(observation("p", 2, shown, action("a", 3))).group])
    collapsed, _ = assign(forest, RULES["imitation"](), TokenMean())
    demonstrated = np.array([s.author is Author.DEMO for s in forest.segments], dtype=float)
    np.testing.assert_array_equal(collapsed.mass, demonstrated)
    np.testing.assert_array_equal(collapsed.pos, demonstrated)
    assert not collapsed.neg.any()


def test_node_credit_carries_its_own_weight():
    forest = Forest.of([hand_tree().group])
    collapsed = NodeCredit(advantage=np.ones(len(forest)), weight=forest.descent).collapse(forest, np.full(3, 2.0))
    np.testing.assert_allclose(collapsed.mass, np.where(forest.action, 2 * forest.descent, 0))


def test_a_column_of_the_wrong_length_is_refused():
    forest = flat_group()
    with pytest.raises(ValueError, match=r"advantage: got shape \(2,\), expected \(5,\)"):
        PathCredit(advantage=np.zeros(2)).collapse(forest, np.ones(5))


def test_token_mean_divides_by_all_action_tokens():
    weight, denominator = TokenMean().weights(flat_group())
    assert weight.tolist() == [1.0] * 5
    assert denominator == 12


def test_seq_mean_token_mean_gives_every_rollout_the_same_say():
    weight, denominator = SeqMeanTokenMean().weights(flat_group())
    np.testing.assert_allclose(weight * LENGTHS, np.ones(5))
    assert denominator == 5


def test_seq_sum_const_divides_by_its_constant():
    weight, denominator = SeqSumConst(constant=640.0).weights(flat_group())
    assert weight.tolist() == [1.0] * 5
    assert denominator == 640.0


def test_a_failed_rollout_alone_leaves_a_forest_without_rows():
    forest = Forest.of([])
    for name in ("grpo", "imitation"):
        collapsed, denominator = assign(forest, RULES[name](), TokenMean())
        assert len(collapsed.mass) == 0
        assert denominator > 0
