"""The cost of a tree and of its paths apart is counted, and packs follow it without changing what is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treadle.algorithms.credit import Collapsed
from treadle.learner.config import LearnerConfig
from treadle.learner.cost import Costs, Count, apart, shared
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.learner.tree import Sharing, Tree, always, never
from treadle.models.policy import Policy
from treadle.testing.random_forests import random_groups
from treadle.trajectory.forest import Forest

SMOLLM = Costs.of(weights=106_000_000, layers=30, width=576)


def fan(prefix: int, completion: int, rollouts: int) -> Tree:
    return Tree([-1, *[0] * rollouts], [prefix, *[completion] * rollouts])


def test_a_tree_counts_shared_tokens_once_and_the_same_pairs_of_the_rest() -> None:
    tree = Tree([-1, 0, 0, 1, 1], [3, 2, 1, 2, 4])
    group = tree.below(0)
    assert group == [0, 1, 3, 4, 2]
    assert shared(tree, group) == Count(tokens=12, pairs=6 + (6 + 3) + 4 + (10 + 3) + (20 + 10), calls=5 + 2)
    assert apart(tree, group) == Count(tokens=7 + 9 + 4, pairs=28 + 45 + 10, calls=3)


def test_a_chain_is_one_call_however_many_runs_it_has() -> None:
    tree = Tree([-1, 0, 1], [3, 2, 4])
    assert shared(tree, [0, 1, 2]) == apart(tree, [0, 1, 2]) == Count(tokens=9, pairs=45, calls=1)


@pytest.mark.parametrize(("shape", "gain"), [
    ((512, 128, 8), 3.18), ((1024, 64, 8), 5.419), ((128, 512, 8), 1.192), ((2000, 18000, 8), 1.028)
])
def test_the_gain_is_what_tokens_pairs_and_calls_come_to(shape: tuple[int, int, int], gain: float) -> None:
    tree = fan(*shape)
    assert SMOLLM.gain(tree, tree.below(0)) == pytest.approx(gain, abs=0.005)
    assert SMOLLM(tree, tree.below(0))


@pytest.mark.parametrize(("prefix", "shares"), [(1, False), (2, True), (100, True)])
def test_a_first_token_alone_is_not_worth_the_calls(prefix: int, shares: bool) -> None:
    tree = fan(prefix, 50, 2)
    assert Costs(token=1e8, pair=0, call=1e8)(tree, tree.below(0)) is shares


def test_groups_are_decided_one_by_one() -> None:
    tree = Tree([-1, 0, 0, -1, 3, 3, -1], [1, 50, 50, 100, 50, 50, 9])
    found, which = tree.apart(Costs(token=1e8, pair=0, call=1e8))
    assert which.tolist() == [0, 1, 0, 2, 3, 4, 5, 6]
    assert found.parent.tolist() == [-1, 0, -1, 2, -1, 4, 4, -1]
    assert found.length.tolist() == [1, 50, 1, 50, 100, 50, 50, 9]


def test_a_run_before_its_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="run 1 as the parent of run 0"):
        Tree([1, -1], [3, 3])


def packs(seed: int, shares: Sharing, budget: int) -> list[PackedBatch]:
    forest = Forest.of(random_groups(seed, 3))
    ones = np.where(forest.action, 1.0, 0.0)
    collapsed = Collapsed(pos=ones, neg=0 * ones, mass=ones)
    return pack(forest, collapsed, denominator=1.0, budget_tokens=budget, tolerance=1e-4, shares=shares)


@pytest.mark.parametrize("budget", [1, 30, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_apart_or_as_a_tree_the_same_edges_are_paid(seed: int, budget: int) -> None:
    def edges(shares: Sharing) -> list[tuple[int, ...]]:
        found = packs(seed, shares, budget)
        columns = [(b.row, b.offset, b.copies, b.version, b.ids[b.tgt].numpy(), b.pos[b.tgt].numpy()) for b in found]
        return sorted(tuple(map(int, edge)) for held in columns for edge in zip(*held, strict=True))

    assert edges(never) == edges(always)
    assert all(node.parent == -1 for batch in packs(seed, never, budget) for node in batch.nodes)


def test_a_learner_knows_the_costs_of_its_model(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig())
    body = sum(p.numel() for p in policy.module.model.layers.parameters())
    assert learner.costs.token == pytest.approx(6 * body, rel=0.01)
    assert learner.costs.pair == 12 * 2 * 32
    assert learner.costs.call > 0
    assert torch.is_grad_enabled()
