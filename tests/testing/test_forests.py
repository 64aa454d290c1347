"""The shipped forests hold what their names say, and equal seeds give equal forests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.testing.forest_edits import break_context, cut_actions, junk_observations, split_observations
from treadle.testing.forests import Node, grow, hand_tree
from treadle.testing.random_forests import Growth, random_groups, random_tree
from treadle.trajectory.segment import Author, Why

SEEDS = st.integers(0, 2**32 - 1)


def nodes(seed: int, growth: Growth) -> list[Node]:
    return [n for i in range(20) for n in random_tree(np.random.default_rng(seed + i), growth).walk()]


@given(seed=SEEDS)
def test_for_all_seeds_equal_seeds_grow_equal_groups(seed: int) -> None:
    one, two = random_groups(seed, 2), random_groups(seed, 2)
    assert [g.rollouts for g in one] == [g.rollouts for g in two]
    assert [s.ids.tolist() for g in one for s in g.segments.values()] == [
        s.ids.tolist() for g in two for s in g.segments.values()
    ]


@pytest.mark.parametrize(
    ("growth", "found"),
    [
        (Growth(fork=1.0), lambda n: len(n.children) > 1 and n.name != "prompt"),
        (Growth(breaks=1.0), lambda n: n.why is Why.COMPACT),
        (Growth(failure=1.0), lambda n: n.end is not None and not n.end.trains),
        (Growth(demonstration=1.0), lambda n: n.author is Author.DEMO),
        (Growth(step_reward=1.0), lambda n: n.reward != 0 and n.children != ()),
        (Growth(versions=3), lambda n: len(n.versions) > 1),
    ],
)
def test_what_is_asked_for_grows(growth: Growth, found: object) -> None:
    assert callable(found)
    assert any(found(n) for n in nodes(0, growth))


@pytest.mark.parametrize(
    ("growth", "found"),
    [
        (Growth(fork=0.0), lambda n: len(n.children) > 1 and n.name != "prompt"),
        (Growth(breaks=0.0), lambda n: n.why is Why.COMPACT),
        (Growth(failure=0.0), lambda n: n.end is not None and not n.end.trains),
        (Growth(), lambda n: n.author is Author.DEMO),
    ],
)
def test_what_is_not_asked_for_does_not_grow(growth: Growth, found: object) -> None:
    assert callable(found)
    assert not any(found(n) for n in nodes(0, growth))


def test_the_hand_tree_is_the_one_on_paper() -> None:
    names = hand_tree().names
    assert {name: len(segment) for name, segment in names.items()} == {
        "prompt": 3, "a1": 2, "e1": 2, "a2": 2, "a3": 1, "b1": 2
    }  # fmt: skip


def test_every_ending_is_a_rollout() -> None:
    grown = hand_tree()
    assert [r.reward for r in grown.group.rollouts.values()] == [1.0, 0.0, 0.0]


@given(seed=SEEDS)
def test_for_all_trees_edits_keep_the_action_tokens(seed: int) -> None:
    root = random_tree(np.random.default_rng(seed))

    def said(tree: Node) -> list[int]:
        return [i for s in grow(tree).group.segments.values() if s.is_action for i in s.ids.tolist()]

    for edit in (cut_actions, split_observations, junk_observations, break_context):
        assert said(edit(root)) == said(root)
        assert edit(root).ids == root.ids
