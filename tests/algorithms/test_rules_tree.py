"""The hand tree under every rule that reads a tree, and what a segment gets that several rollouts share."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from treadle.algorithms.aggregation import SeqSumConst, TokenMean
from treadle.algorithms.credit import Credit, NodeCredit, PathCredit, TokenCredit, assign
from treadle.algorithms.gigpo import GiGpo
from treadle.algorithms.rules import RULES
from treadle.algorithms.shared import SHARED, First, Mean, NodeWeight, PathSum
from treadle.core.errors import ConfigError
from treadle.recipes.recipe import Algorithm
from treadle.testing.forests import Grown, action, grow, hand_tree, observation
from treadle.trajectory.forest import Column, Forest

HALF = 1 / np.sqrt(2)


@pytest.fixture
def grown() -> Grown:
    return hand_tree()


@pytest.fixture
def hand(grown: Grown) -> Forest:
    return Forest.of([grown.group])


def at(forest: Forest, grown: Grown, column: Column, *names: str) -> list[float]:
    return [float(column[forest.segments.index(grown.names[name])]) for name in names]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("treerl", [0.353553, 1.75, -1.25, -1.0]),
        ("spo_tree", [0.25, 0.5, -0.5, -0.25]),
        ("treerpo", [0.70711, 0.70711, -0.70711, -0.70711]),
        ("gigpo", [1 / 6 + 0.2375, 2 / 3 + 0.5, -1 / 3 - 0.5, -1 / 3 - 0.2375]),
    ],
)
def test_rules_of_nodes_on_the_hand_tree(hand: Forest, grown: Grown, name: str, expected: list[float]):
    credit = RULES[name]()(hand)
    assert at(hand, grown, credit.advantage, "a1", "a2", "a3", "b1") == pytest.approx(expected, abs=1e-5)


def test_gigpo_with_std_divides_both_parts(hand: Forest, grown: Grown):
    both = at(hand, grown, GiGpo(std=True)(hand).advantage, "a1", "a2", "a3", "b1")
    expected = [0.288675 + HALF, 1.154699 + HALF, -0.577349 - HALF, -0.577349 - HALF]
    assert both == pytest.approx(expected, abs=1e-4)


def test_tree_grpo_adds_the_comparison_within_the_tree(hand: Forest):
    got = RULES["tree_grpo"]()(hand).advantage
    np.testing.assert_allclose(got, [1.154699 + HALF, -0.577349 - HALF, -0.577349], atol=1e-5)


def test_trees_are_told_apart_by_their_first_action_however_deep_they_fork():
    deep = action("a1", 1, observation("e1", 1, action("a2", 1, observation(
        "e2", 1, action("a3", 1, reward=1.0), action("a4", 1)
    ))))
    forest = Forest.of([grow(observation("p", 1, deep, action("b", 1), action("c", 1, reward=1.0))).group])
    whole = RULES["grpo"]()(forest).advantage
    np.testing.assert_allclose(RULES["tree_grpo"]()(forest).advantage - whole, [HALF, -HALF, 0, 0], atol=1e-5)


# -- what a shared segment gets --------------------------------------------------------------------------------

PATHS = PathCredit(advantage=np.array([3.0, -1.0, 0.5]))  # a2, a3, b1
ROWS = ("prompt", "a1", "e1", "a2", "a3", "b1")


@pytest.mark.parametrize(
    ("name", "pos", "neg", "mass"),
    [
        ("path_sum", [0, 3, 0, 3, 0, 0.5], [0, -1, 0, 0, -1, 0], [0, 2, 0, 1, 1, 1]),
        ("mean", [0, 1.5, 0, 3, 0, 0.5], [0, -0.5, 0, 0, -1, 0], [0, 1, 0, 1, 1, 1]),
        ("first", [0, 3, 0, 3, 0, 0.5], [0, 0, 0, 0, -1, 0], [0, 1, 0, 1, 1, 1]),
        ("node", [0, 0.75, 0, 0.75, 0, 0.25], [0, -0.25, 0, 0, -0.25, 0], [0, 0.5, 0, 0.25, 0.25, 0.5]),
    ],
)
def test_a_shared_segment_gets_what_the_recipe_names(
    hand: Forest, grown: Grown, name: str, pos: list[float], neg: list[float], mass: list[float]
):
    collapsed = PATHS.collapse(hand, np.ones(3), SHARED[name]())
    assert at(hand, grown, collapsed.pos, *ROWS) == pytest.approx(pos)
    assert at(hand, grown, collapsed.neg, *ROWS) == pytest.approx(neg)
    assert at(hand, grown, collapsed.mass, *ROWS) == pytest.approx(mass)


@pytest.mark.parametrize(("name", "a1"), [("path_sum", 2.0), ("mean", 1.0), ("node", 0.5)])
def test_one_advantage_per_segment_counts_as_often_as_the_recipe_says(
    hand: Forest, grown: Grown, name: str, a1: float
):
    for credit in (NodeCredit(advantage=np.full(len(hand), -2.0)), TokenCredit(advantage=np.full(hand.tokens, -2.0))):
        collapsed = credit.collapse(hand, np.ones(3), SHARED[name]())
        if isinstance(credit, TokenCredit):
            np.testing.assert_array_equal(collapsed.neg, -2 * collapsed.mass)
            assert collapsed.mass[hand.start[hand.segments.index(grown.names["a1"])]] == pytest.approx(a1)
        else:
            assert at(hand, grown, collapsed.mass, "a1") == pytest.approx([a1])


@pytest.mark.parametrize("shared", [PathSum(), Mean(), First()])
def test_where_nothing_is_shared_the_choice_changes_nothing(shared: PathSum | Mean | First):
    forest = Forest.of([grow(observation("p", 1, action("a", 1, reward=1.0), action("b", 2))).group])
    one, _ = assign(forest, RULES["grpo"](), TokenMean(), shared=shared)
    two, _ = assign(forest, RULES["grpo"](), TokenMean())
    for name in ("pos", "neg", "mass"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


class Constant:
    """A rule that gives what it is told to."""

    name: ClassVar[str] = "constant"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar = "group"
    min_rollouts: ClassVar[int] = 1

    def __init__(self, credit: Credit) -> None:
        self.credit = credit

    def __call__(self, forest: Forest) -> Credit:
        return self.credit


def test_the_first_branch_cannot_be_had_where_a_segment_has_one_advantage(hand: Forest):
    for credit in (NodeCredit(advantage=np.zeros(len(hand))), TokenCredit(advantage=np.zeros(hand.tokens))):
        with pytest.raises(ValueError, match=r"algorithm.shared=first: .* set algorithm.shared=mean"):
            assign(hand, Constant(credit), TokenMean(), shared=First())


def test_a_rule_with_weights_of_its_own_keeps_them_or_refuses(hand: Forest):
    credit = NodeCredit(advantage=np.ones(len(hand)), weight=hand.descent)
    for shared in (PathSum(), NodeWeight()):
        collapsed, _ = assign(hand, Constant(credit), TokenMean(), shared=shared)
        np.testing.assert_allclose(collapsed.mass, np.where(hand.action, hand.descent, 0))
    with pytest.raises(ValueError, match=r"algorithm.shared=mean: .* set algorithm.shared=path_sum"):
        assign(hand, Constant(credit), TokenMean(), shared=Mean())


def test_walk_weights_are_refused_beside_a_denominator_that_counts():
    with pytest.raises(ConfigError, match=r"algorithm.shared=node contradicts algorithm.aggregation=token_mean"):
        Algorithm(shared=NodeWeight())
    assert Algorithm(shared=NodeWeight(), aggregation=SeqSumConst(constant=8.0)).shared.name == "node"


def test_everything_shared_stands_in_its_table_under_its_own_name():
    assert {name: kind.name for name, kind in SHARED.items()} == {n: n for n in ("path_sum", "mean", "first", "node")}
