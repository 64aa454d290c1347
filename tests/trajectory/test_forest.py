"""Scans of the forest: golden numbers of the hand tree, and properties for all forests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.outcome import OK, Origin, Outcome, Status
from treadle.testing import forest_edits as edits
from treadle.testing.forests import Node, action, grow, hand_tree, observation
from treadle.testing.random_forests import Growth, random_groups, random_tree
from treadle.trajectory.forest import Forest, center
from treadle.trajectory.segment import Author

SEEDS = st.integers(0, 2**32 - 1)
INFRA = Outcome(status=Status.ERROR, origin=Origin.INFRA)
EDITS: list[Callable[[Node], Node]] = [
    edits.cut_actions, edits.split_observations, edits.junk_observations, edits.break_context,
    lambda root: edits.shuffle_siblings(root, np.random.default_rng(1)),
]  # fmt: skip


def tree(seed: int, growth: Growth | None = None) -> Node:
    return random_tree(np.random.default_rng(seed), growth)


def by_ending(root: Node, column: Callable[[Forest], np.ndarray]) -> list[float]:
    """A per-rollout column in an order that does not depend on the order of siblings."""
    forest = Forest.of([grow(root).group])
    said = [acted(forest, int(row)) for row in forest.rollout_leaf]
    return [value for _, value in sorted(zip(said, column(forest).tolist(), strict=True))]


def acted(forest: Forest, row: int) -> list[int]:
    """All action tokens in time up to a row."""
    before = acted(forest, int(forest.after[row])) if forest.after[row] >= 0 else []
    return before + (forest.segments[row].ids.tolist() if forest.action[row] else [])


# -- the hand tree ---------------------------------------------------------------------------------------------


@pytest.fixture
def hand() -> Forest:
    return Forest.of([hand_tree().group])


def test_rows_stand_parent_before_child(hand: Forest) -> None:
    assert hand.length.tolist() == [3, 2, 2, 2, 1, 2]
    assert hand.after.tolist() == [-1, 0, 1, 2, 2, 0]
    assert hand.parent.tolist() == hand.after.tolist()
    assert hand.action.tolist() == [False, True, False, True, True, True]


def test_returns_of_the_hand_tree(hand: Forest) -> None:
    assert hand.returns.tolist() == [1, 0, 0]


def test_child_mean_of_the_hand_tree(hand: Forest) -> None:
    assert hand.child_mean(hand.returns).tolist() == [0.25, 0.5, 0.5, 1, 0, 0]


def test_leaf_mean_of_the_hand_tree(hand: Forest) -> None:
    assert hand.leaf_mean(hand.returns) == pytest.approx([1 / 3, 0.5, 0.5, 1, 0, 0])


def test_descent_of_the_hand_tree(hand: Forest) -> None:
    assert hand.descent.tolist() == [1, 0.5, 0.5, 0.25, 0.25, 0.5]


def test_leaves_above_each_row_of_the_hand_tree(hand: Forest) -> None:
    assert hand.up(hand.leaves).tolist() == [3, 2, 2, 1, 1, 1]


def test_reward_to_go_is_discounted_once_per_action(hand: Forest) -> None:
    assert hand.togo(0.5).tolist() == [0.125, 0.25, 0.5, 1, 0, 0]


def test_action_tokens_of_each_rollout_of_the_hand_tree(hand: Forest) -> None:
    assert hand.rollout_tokens.tolist() == [4, 3, 2]


# -- what is left out ------------------------------------------------------------------------------------------


def test_a_failed_rollout_leaves_no_row_and_its_siblings_stay() -> None:
    failed = Node(name="c", author=Author.POLICY, ids=(5, 6), reward=4.0, end=INFRA)
    with_failure = grow(observation("p", 2, action("a", 1, reward=1.0), failed, action("b", 1))).group
    without = grow(observation("p", 2, action("a", 1, reward=1.0), action("b", 1))).group
    one, two = Forest.of([with_failure]), Forest.of([without])
    assert len(with_failure.segments) == len(without.segments) + 1
    assert one.reward.tolist() == two.reward.tolist() == [0, 1, 0]
    assert one.returns.tolist() == two.returns.tolist()
    assert [r.index for r in one.rollouts] == [0, 2]


def test_what_a_failed_rollout_shares_with_a_valid_one_stays() -> None:
    failed = Node(name="f", author=Author.POLICY, ids=(5,), end=INFRA)
    forest = Forest.of([grow(observation("p", 1, action("a", 1, observation("e", 1, failed, action("b", 1))))).group])
    assert [len(s.ids) for s in forest.segments] == [1, 1, 1, 1]
    assert forest.descent.tolist() == [1, 1, 1, 1]


def test_a_group_of_failures_is_an_empty_forest() -> None:
    group = grow(observation("p", 1, Node(name="a", author=Author.POLICY, ids=(1,), end=INFRA))).group
    forest = Forest.of([group])
    assert (len(forest), len(forest.rollouts), forest.returns.tolist()) == (0, 0, [])


def test_no_groups_are_an_empty_forest() -> None:
    assert len(Forest.of([])) == 0


def test_a_rollout_that_did_nothing_is_no_row() -> None:
    grown = grow(observation("p", 1, action("a", 1)))
    still = grown.group.begin(7)
    grown.group.end(still.id, OK)
    assert [r.index for r in Forest.of([grown.group]).rollouts] == [0]


def test_parts_that_do_not_train_stay_out_of_the_reward() -> None:
    group = hand_tree().group
    rollout = group.begin(9).id
    group.demonstrated(rollout, np.array([4], np.int32), after=next(iter(group.segments.values())), turn=0)
    group.pay(rollout, "seen", 5.0, train=False)
    group.end(rollout, OK)
    assert Forest.of([group]).returns.tolist() == [1, 0, 0, 0]


@given(seed=SEEDS)
def test_for_all_forests_only_rollouts_that_train_have_rows(seed: int) -> None:
    groups = random_groups(seed, 3, Growth(failure=0.5))
    forest = Forest.of(groups)
    valid = [r.id for g in groups for r in g.valid]
    assert [r.id for r in forest.rollouts] == valid
    reached = forest.up(forest.leaves)
    assert np.all(reached >= 1)


# -- scans -----------------------------------------------------------------------------------------------------


@given(seed=SEEDS)
def test_for_all_forests_predecessors_come_first_and_stay_in_their_group(seed: int) -> None:
    forest = Forest.of(random_groups(seed, 3))
    for link in (forest.parent, forest.after):
        assert np.all(link < np.arange(len(forest)))
        inner = link >= 0
        assert np.all(forest.group[link[inner]] == forest.group[inner])


@given(seed=SEEDS)
def test_for_all_forests_up_and_down_are_transposes(seed: int) -> None:
    forest = Forest.of(random_groups(seed, 2))
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=len(forest)), rng.normal(size=len(forest))
    assert forest.up(x) @ y == pytest.approx(x @ forest.down(y), abs=1e-9)


@given(seed=SEEDS)
def test_for_all_forests_a_walk_from_the_group_ends_somewhere(seed: int) -> None:
    forest = Forest.of(random_groups(seed, 3))
    share = np.bincount(forest.group, weights=forest.descent * forest.leaves / forest.children.clip(1), minlength=3)
    present = np.isin(np.arange(3), forest.group)
    assert share == pytest.approx(present.astype(float))


@given(seed=SEEDS)
def test_for_all_forests_child_mean_is_the_expected_return_of_the_walk(seed: int) -> None:
    forest = Forest.of(random_groups(seed, 1))
    if not len(forest):
        return
    ends = forest.descent[forest.rollout_leaf] / forest.children[forest.rollout_leaf]
    assert forest.child_mean(forest.returns)[0] == pytest.approx(float(ends @ forest.returns), abs=1e-9)


@given(seed=SEEDS)
def test_for_all_forests_returns_count_every_reward_of_a_valid_path_once(seed: int) -> None:
    groups = random_groups(seed, 2, Growth(fork=0.0))
    forest = Forest.of(groups)
    assert forest.returns == pytest.approx([r.reward for r in forest.rollouts])


@given(seed=SEEDS)
def test_for_all_forests_columns_of_two_groups_are_those_of_each(seed: int) -> None:
    groups = random_groups(seed, 2)
    both = Forest.of(groups)
    one, two = (Forest.of([g]) for g in groups)
    assert both.returns.tolist() == [*one.returns.tolist(), *two.returns.tolist()]
    assert both.descent.tolist() == [*one.descent.tolist(), *two.descent.tolist()]


# -- rows do not count -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", EDITS)
@given(seed=SEEDS)
def test_for_all_forests_the_same_story_in_other_rows_gives_the_same_values(
    edit: Callable[[Node], Node], seed: int
) -> None:
    root = tree(seed)
    for column in (
        lambda f: f.returns, lambda f: f.leaf_mean(f.returns)[f.rollout_leaf],
        lambda f: f.descent[f.rollout_leaf], lambda f: f.rollout_tokens,
    ):  # fmt: skip
        assert by_ending(edit(root), column) == pytest.approx(by_ending(root, column))


@given(seed=SEEDS)
def test_for_all_forests_values_at_the_root_ignore_rows(seed: int) -> None:
    root = tree(seed)
    forests = [Forest.of([grow(edit(root)).group]) for edit in EDITS]
    base = Forest.of([grow(root).group])
    if not len(base):
        return
    for forest in forests:
        assert forest.child_mean(forest.returns)[0] == pytest.approx(base.child_mean(base.returns)[0])
        assert forest.leaf_mean(forest.returns)[0] == pytest.approx(base.leaf_mean(base.returns)[0])


@given(seed=SEEDS)
def test_for_all_forests_moving_a_reward_to_the_observation_after_it_changes_nothing(seed: int) -> None:
    def move(node: Node) -> Node:
        children = tuple(move(child) for child in node.children)
        moved = replace(node, children=children)
        if not node.reward or [c.author for c in children] != [Author.ENV] or children[0].reward:
            return moved
        return replace(moved, reward=0.0, children=(replace(children[0], reward=node.reward),))

    root = tree(seed, Growth(step_reward=1.0))
    one, two = Forest.of([grow(root).group]), Forest.of([grow(move(root)).group])
    assert one.reward.tolist() == two.reward.tolist()


# -- center ----------------------------------------------------------------------------------------------------


def test_center_takes_the_mean_of_each_key() -> None:
    got = center(np.array([1.0, 0.0, 0.0, 5.0]), np.array([0, 0, 0, 1]))
    assert got == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0])


def test_center_can_leave_the_entry_itself_out() -> None:
    assert center(np.array([1.0, 0.0, 0.0]), np.zeros(3, np.int64), loo=True) == pytest.approx([1, -0.5, -0.5])


def test_center_can_divide_by_the_sample_deviation() -> None:
    got = center(np.array([1.0, 0.0, 0.0]), np.zeros(3, np.int64), std=True)
    assert got == pytest.approx([1.154699, -0.577349, -0.577349], abs=1e-6)


def test_center_of_equal_values_is_zero() -> None:
    assert center(np.full(3, 0.5), np.zeros(3, np.int64), std=True).tolist() == [0, 0, 0]
