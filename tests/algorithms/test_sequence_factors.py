"""What a first pass finds for a rollout: the golden sequence ratios, over all its actions and contexts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from treadle.algorithms.corrections import SequenceMask, Tis
from treadle.algorithms.kl import Kl
from treadle.algorithms.losses import Gspo, PpoClip
from treadle.algorithms.losses_sequence import path_sums
from treadle.algorithms.objective import Objective
from treadle.testing.forest_edits import break_context, cut_actions, junk_observations
from treadle.testing.forests import Node, grow
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author

NEW, OLD, ROLL = [-1.0, -2.0, -0.5], [-1.2, -1.5, -0.6], [-1.4, -1.5, -3.0]


def tree(behaviour: list[float]) -> Node:
    """One rollout of two actions, two tokens and one; ids tell its tokens apart."""
    last = Node(name="b", author=Author.POLICY, ids=(12,), logprobs=(behaviour[2],), reward=1.0)
    seen = Node(name="e", author=Author.ENV, ids=(5, 6), children=(last,))
    first = Node(name="a", author=Author.POLICY, ids=(10, 11), logprobs=tuple(behaviour[:2]), children=(seen,))
    return Node(name="prompt", author=Author.ENV, ids=(3,), children=(first,))


def noted(root: Node, name: str, numbers: list[float]) -> Forest:
    """The forest with a note: numbers[i] on the token 10 + i."""
    forest = Forest.of([grow(root).group])
    at = np.concatenate([s.ids for s in forest.segments])
    column = np.array([numbers[i - 10] if i >= 10 else np.nan for i in at.tolist()])
    return replace(forest, notes={name: column})


@pytest.mark.parametrize("edit", [lambda root: root, junk_observations, cut_actions, break_context])
def test_gspo_s_ratio_is_the_golden_one_however_the_rollout_is_told(edit) -> None:
    found = Gspo(eps_low=0.5, eps_high=0.5).factors(noted(edit(tree(OLD)), "new", NEW))
    assert found.pos.tolist() == found.neg.tolist() == pytest.approx([np.exp(-0.2 / 3)], abs=1e-6)


def test_gspo_gives_no_gradient_where_the_sign_asks_to_go_on() -> None:
    low = Gspo().factors(noted(tree(OLD), "new", NEW))
    assert low.pos[0] > 0
    assert low.neg[0] == 0
    high = Gspo().factors(noted(tree(NEW), "new", OLD))
    assert high.pos[0] == 0
    assert high.neg[0] > 0
    far = Gspo(dual=1.05).factors(noted(tree(NEW), "new", OLD))
    assert far.neg[0] == 0


def test_the_sequence_mask_asks_the_product_of_all_ratios() -> None:
    forest = noted(tree(ROLL), "prox", OLD)
    assert path_sums(forest, forest.note("prox"))[1].tolist() == [3]
    assert SequenceMask(cap=3.0).on_rollouts(forest).tolist() == [0]
    assert SequenceMask(cap=13.4).on_rollouts(forest).tolist() == [0]
    assert SequenceMask(cap=13.5).on_rollouts(forest).tolist() == [1]  # exp(0.2 + 0 + 2.4) = 13.46
    assert SequenceMask(cap=100.0, low=0.9).on_rollouts(noted(tree(OLD), "prox", [-1.4, -1.5, -3.0])).tolist() == [0]


def test_corrections_of_tokens_leave_rollouts_alone() -> None:
    assert Tis().on_rollouts(noted(tree(ROLL), "prox", OLD)).tolist() == [1]


def test_a_penalty_in_the_reward_is_taken_from_the_action_that_earned_it() -> None:
    forest = noted(tree(OLD), "ref", [-1.4, -1.4, -0.6])
    paid = Kl(coefficient=2.0, estimate="k1", where="reward").rewarded(forest)
    assert paid.reward.tolist() == pytest.approx([0.0, -2 * (0.2 - 0.1), 0.0, 1.0])
    assert paid.returns.tolist() == pytest.approx([0.8])


def test_a_penalty_in_the_loss_leaves_rewards_alone() -> None:
    forest = noted(tree(OLD), "ref", OLD)
    assert Objective(loss=PpoClip(), kl=Kl()).rewarded(forest) is forest
