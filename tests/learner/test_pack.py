"""The layout of a pack and the split over a budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.credit import Collapsed
from treadle.learner.pack import Node, PackedBatch, pack
from treadle.testing.forests import Node as Tree
from treadle.testing.forests import action, grow, hand_tree, observation
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest


def everything(forest: Forest) -> Collapsed:
    ones = np.where(forest.action, 1.0, 0.0)
    return Collapsed(pos=ones, neg=0 * ones, mass=ones)


def packs_of(forest: Forest, budget: int = 10_000) -> list[PackedBatch]:
    return pack(forest, everything(forest), denominator=1.0, budget_tokens=budget)


def single(root: Tree) -> PackedBatch:
    (batch,) = packs_of(Forest.of([grow(root).group]))
    return batch


def test_the_hand_tree_lies_in_depth_first_order():
    (batch,) = packs_of(Forest.of([hand_tree().group]))
    # prompt 0-2, a1 3-4, e1 5-6, a2 7-8, a3 9, b1 10-11
    assert batch.pos.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 3, 4]
    assert batch.end.tolist() == [12] * 3 + [10] * 4 + [9] * 2 + [10] + [12] * 2
    assert batch.tgt.tolist() == [3, 4, 7, 8, 9, 10, 11]
    assert batch.src.tolist() == [2, 3, 6, 7, 6, 2, 10]


def test_a_branch_point_is_the_source_of_every_branch():
    (batch,) = packs_of(Forest.of([hand_tree().group]))
    assert batch.src.tolist().count(2) == 2
    assert batch.src.tolist().count(6) == 2


def test_tokens_of_the_world_are_no_targets():
    forest = Forest.of(random_groups(3, 3))
    targets = [forest.segments[row] for batch in packs_of(forest) for row in batch.row]
    assert targets
    assert all(segment.is_action for segment in targets)


def test_chains_are_one_node():
    chain = action("a1", 2, observation("e1", 1, action("a2", 3)))
    batch = single(observation("prompt", 4, chain, action("b1", 2)))
    assert batch.nodes == (Node(0, 4, -1), Node(4, 6, 0), Node(10, 2, 0))


def test_a_lone_rollout_is_one_node():
    batch = single(observation("prompt", 4, action("a1", 2, observation("e1", 1, action("a2", 3)))))
    assert batch.nodes == (Node(0, 10, -1),)


def test_an_observation_after_the_last_action_is_left_out():
    batch = single(observation("prompt", 4, action("a1", 2, observation("e1", 7))))
    assert batch.tokens == 6


def test_branches_without_mass_are_left_out():
    forest = Forest.of([hand_tree().group])
    mass = np.where([s.id.endswith("5") for s in forest.segments], 1.0, 0.0)  # b1 only
    (batch,) = pack(forest, Collapsed(pos=mass, neg=0 * mass, mass=mass), denominator=1.0, budget_tokens=100)
    assert batch.tokens == 5
    assert batch.tgt.tolist() == [3, 4]


def test_without_mass_there_is_no_pack():
    forest = Forest.of([hand_tree().group])
    zero = np.zeros(len(forest))
    assert pack(forest, Collapsed(pos=zero, neg=zero, mass=zero), denominator=1.0, budget_tokens=9) == []


def test_several_groups_share_a_pack():
    forest = Forest.of(random_groups(5, 3))
    (batch,) = packs_of(forest)
    assert sum(node.parent == -1 for node in batch.nodes) == 3
    assert (batch.pos == 0).sum() == 3


def test_a_path_over_the_budget_gets_a_pack_of_its_own():
    tree = observation("prompt", 2, action("a", 50), action("b", 1), action("c", 1))
    packs = packs_of(Forest.of([grow(tree).group]), budget=10)
    assert [batch.tokens for batch in packs] == [52, 4]


def test_recorded_log_probs_stand_at_their_targets():
    forest = Forest.of(random_groups(9, 2, Growth(demonstration=0.5)))
    for batch in packs_of(forest, 30):
        for old, row, offset in zip(batch.terms.old.tolist(), batch.row, batch.offset, strict=True):
            recorded = forest.segments[row].logprobs
            assert np.isnan(old) if recorded is None else old == pytest.approx(float(recorded[offset]))


@pytest.mark.parametrize(("budget", "denominator"), [(0, 1.0), (10, 0.0), (10, float("nan"))])
def test_a_senseless_budget_or_denominator_is_refused(budget: int, denominator: float):
    forest = Forest.of([hand_tree().group])
    with pytest.raises(ValueError, match="expected"):
        pack(forest, everything(forest), denominator=denominator, budget_tokens=budget)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), budget=st.integers(1, 80))
def test_every_edge_is_paid_exactly_once_and_budgets_hold(seed: int, budget: int):
    forest = Forest.of(random_groups(seed, 3))
    whole, packs = packs_of(forest), packs_of(forest, budget)

    def paid(batches: list[PackedBatch]) -> list[tuple[int, int]]:
        return sorted(
            (int(r), int(o)) for batch in batches for r, o in zip(batch.row, batch.offset, strict=True)
        )

    assert paid(packs) == paid(whole)
    assert len(set(paid(packs))) == len(paid(packs))
    for batch in packs:
        leaves = {int(e) for e in batch.end}
        assert batch.tokens <= budget or len(leaves) == 1


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), budget=st.integers(20, 200))
def test_a_token_sees_exactly_its_own_context(seed: int, budget: int):
    forest = Forest.of(random_groups(seed, 2))
    for batch in packs_of(forest, budget):
        at = torch.arange(batch.tokens)
        sees = (at[None, :] <= at[:, None]) & (at[:, None] < batch.end[None, :])
        assert torch.equal(sees.sum(1), batch.pos + 1)
        for tgt, row, offset in zip(batch.tgt.tolist(), batch.row.tolist(), batch.offset.tolist(), strict=True):
            context, up = [forest.segments[row].ids[: offset + 1]], int(forest.parent[row])
            while up >= 0:
                context.append(forest.segments[up].ids)
                up = int(forest.parent[up])
            assert batch.ids[sees[tgt]].tolist() == np.concatenate(context[::-1]).tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), budget=st.integers(20, 200))
def test_nodes_tell_the_same_tree_as_the_ends(seed: int, budget: int):
    for batch in packs_of(Forest.of(random_groups(seed, 2)), budget):
        assert [node.start for node in batch.nodes] == np.cumsum([0, *(n.length for n in batch.nodes)])[:-1].tolist()
        for node in batch.nodes:
            seen, up = node.length, node.parent
            while up >= 0:
                above = batch.nodes[up]
                assert above.start + above.length <= node.start < int(batch.end[above.start])
                seen, up = seen + above.length, above.parent
            assert seen == int(batch.pos[node.start + node.length - 1]) + 1
