"""Scans give the bits of the plain loops that define them, and forests that are no forests are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.testing.forest_edits import cut_actions
from treadle.testing.forests import action, grow, hand_tree, observation
from treadle.testing.random_forests import random_groups, random_tree
from treadle.trajectory.forest import Column, Forest
from treadle.trajectory.group import Group

SEEDS = st.integers(0, 2**32 - 1)


def plain_up(forest: Forest, x: Column) -> Column:
    out = np.array(x)
    for i in range(len(forest) - 1, -1, -1):
        if forest.after[i] >= 0:
            out[forest.after[i]] += out[i]
    return out


def plain_down(forest: Forest, x: Column) -> Column:
    out = np.array(x)
    for i in range(len(forest)):
        if forest.after[i] >= 0:
            out[i] += out[forest.after[i]]
    return out


def plain_child_mean(forest: Forest, x: Column) -> Column:
    out = forest.at_leaves(x)
    for i in range(len(forest) - 1, -1, -1):
        out[i] /= forest.children[i]
        if forest.after[i] >= 0:
            out[forest.after[i]] += out[i]
    return out


def plain_descent(forest: Forest) -> Column:
    roots = np.bincount(forest.group[forest.after < 0], minlength=len(forest.keys))
    out = np.zeros(len(forest))
    for i, before in enumerate(forest.after):
        out[i] = 1 / roots[forest.group[i]] if before < 0 else out[before] / forest.children[before]
    return out


def plain_togo(forest: Forest, gamma: float) -> Column:
    out = np.zeros(len(forest))
    for i in range(len(forest) - 1, -1, -1):
        rest = out[i] / forest.children[i]
        out[i] = forest.reward[i] + (gamma * rest if forest.action[i] else rest)
        if forest.after[i] >= 0:
            out[forest.after[i]] += out[i]
    return out


@given(seed=SEEDS)
def test_for_all_forests_scans_give_the_bits_of_the_loops_that_define_them(seed: int) -> None:
    forest = Forest.of(random_groups(seed, 3))
    rng = np.random.default_rng(seed)
    x, per_rollout = rng.normal(size=len(forest)), rng.normal(size=len(forest.rollouts))
    assert forest.up(x).tolist() == plain_up(forest, x).tolist()
    assert forest.down(x).tolist() == plain_down(forest, x).tolist()
    assert forest.child_mean(per_rollout).tolist() == plain_child_mean(forest, per_rollout).tolist()
    assert forest.descent.tolist() == plain_descent(forest).tolist()
    assert forest.togo(0.9).tolist() == plain_togo(forest, 0.9).tolist()


@given(seed=SEEDS)
def test_for_all_forests_an_action_in_pieces_is_discounted_once(seed: int) -> None:
    root = random_tree(np.random.default_rng(seed))
    whole, cut = Forest.of([grow(root).group]), Forest.of([grow(cut_actions(root)).group])
    if len(whole):
        assert cut.togo(0.5)[0] == pytest.approx(whole.togo(0.5)[0], abs=1e-12)
        assert cut.begins.sum() == whole.begins.sum()


def test_fold_passes_on_what_follows_and_what_endings_are_worth() -> None:
    forest = Forest.of([hand_tree().group])  # prompt; a1 -> e1 -> {a2, a3}; b1
    value, rest = forest.fold(np.arange(6.0), factor=0.5, ends=np.array([4.0, 2.0, 8.0]))
    assert rest.tolist() == [6.125, 4.5, 5.0, 4.0, 2.0, 8.0]
    assert value.tolist() == [3.0625, 3.25, 4.5, 5.0, 5.0, 9.0]


# -- what is no forest -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["parent", "after"])
@pytest.mark.parametrize(("row", "to"), [(1, 2), (2, 2), (0, 5), (3, -2)])
def test_a_cycle_or_a_child_before_its_parent_is_refused(link: str, row: int, to: int) -> None:
    forest = Forest.of([hand_tree().group])
    column = getattr(forest, link).copy()
    column[row] = to
    with pytest.raises(ValueError, match=rf"forest: row {row} .* has {link}={to}, expected an earlier row or -1"):
        replace(forest, **{link: column})


def test_a_predecessor_in_another_group_is_refused() -> None:
    groups = [grow(observation("p", 1, action("a", 1)), id=f"g{i}").group for i in range(2)]
    forest = Forest.of(groups)
    with pytest.raises(ValueError, match=r"forest: row 3 .* of group 1 has after=1, a row of group 0"):
        replace(forest, after=np.array([-1, 0, -1, 1]))


def test_a_column_of_another_length_is_refused() -> None:
    forest = Forest.of([hand_tree().group])
    with pytest.raises(ValueError, match=r"forest: column reward has shape \(2,\), expected \(6,\)"):
        replace(forest, reward=np.zeros(2))
    with pytest.raises(ValueError, match=r"forest: note value has shape \(6,\), expected \(12,\), one per token"):
        replace(forest, notes={"value": np.zeros(6)})


@pytest.mark.parametrize("leaf", [-1, 6])
def test_a_rollout_that_ends_nowhere_is_refused(leaf: int) -> None:
    forest = Forest.of([hand_tree().group])
    with pytest.raises(ValueError, match=r"forest: rollout_leaf expected one row in 0..5 for each of 3"):
        replace(forest, rollout_leaf=np.array([3, 4, leaf]))


def broken(change: Callable[[Group], None]) -> Group:
    group = grow(observation("p", 1, action("a", 1, observation("e", 1, action("b", 1))))).group
    change(group)
    return group


def test_a_group_whose_segments_come_after_themselves_is_refused() -> None:
    def tie(group: Group) -> None:
        first, *_, last = group.segments.values()
        group.segments[first.id] = replace(first, parent=last.id, after=last.id)

    with pytest.raises(ValueError, match=r"group g0: segment g0:\d+ comes after itself, expected no cycle"):
        Forest.of([broken(tie)])


def test_a_group_that_lacks_a_predecessor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"group g0: segment g0:00001 is missing, but others come after it"):
        Forest.of([broken(lambda group: group.segments.pop("g0:00001") and None)])

