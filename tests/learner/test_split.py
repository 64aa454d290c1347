"""Where trees over the budget are cut: every leaf in one pack, in order, nothing computed twice that need not be."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.learner.tree import PACK, Tree


def tokens(tree: Tree, packs: list[np.ndarray]) -> int:
    return sum(int(tree.length[pack].sum()) for pack in packs)


def group(prompt: int, rollouts: int, length: int, *, first: int = 0) -> tuple[list[int], list[int]]:
    return [-1, *[first] * rollouts], [prompt, *[length] * rollouts]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    count = draw(st.integers(1, 14))
    parent = [draw(st.integers(-1, i - 1)) for i in range(count)]
    return Tree(parent, [draw(st.integers(1, 60)) for _ in range(count)])


def test_groups_that_fit_alone_are_not_cut():
    (p1, l1), (p2, l2) = group(150, 8, 64), group(150, 8, 64, first=9)
    tree = Tree(p1 + p2, l1 + l2)
    packs = list(tree.split(1024))
    assert [pack.tolist() for pack in packs] == [list(range(9)), list(range(9, 18))]


def test_a_group_over_the_budget_is_cut_into_as_few_packs_as_hold_it():
    tree = Tree(*group(150, 8, 64))
    packs = list(tree.split(150 + 4 * 64))
    assert [len(pack) for pack in packs] == [5, 5]
    assert tokens(tree, packs) == 2 * (150 + 4 * 64)


def test_a_path_over_the_budget_has_a_pack_of_its_own():
    tree = Tree([-1, 0, 0], [10, 500, 10])
    assert [pack.tolist() for pack in tree.split(100)] == [[0, 1], [0, 2]]


@settings(max_examples=150, deadline=None)
@given(tree=trees(), budget=st.integers(1, 300))
def test_no_other_cuts_compute_less(tree: Tree, budget: int):
    packs = list(tree.split(budget))
    paths = [tree.path(leaf) for leaf in tree.leaves(tree.roots)]
    assert [run for pack in packs for run in pack.tolist() if not tree.children[run]] == [path[-1] for path in paths]
    assert all(int(tree.length[pack].sum()) <= budget or len(set(pack) & {p[-1] for p in paths}) == 1 for pack in packs)

    def cost(cuts: tuple[int, ...]) -> float:
        total = 0
        for a, b in itertools.pairwise((0, *cuts, len(paths))):
            size = int(tree.length[sorted({run for path in paths[a:b] for run in path})].sum())
            if size > budget and b - a > 1:
                return np.inf
            total += size + PACK
        return total

    every = (cuts for n in range(len(paths)) for cuts in itertools.combinations(range(1, len(paths)), n))
    assert tokens(tree, packs) + PACK * len(packs) == min(map(cost, every))


@settings(max_examples=50, deadline=None)
@given(tree=trees(), budget=st.integers(1, 300))
def test_a_pack_is_in_pre_order_with_parents_first(tree: Tree, budget: int):
    for pack in tree.split(budget):
        seen: list[int] = []
        for run in pack.tolist():
            parent = int(tree.parent[run])
            assert parent < 0 or parent in seen
            seen.append(run)
