"""Invariant 11: packed training is training one path at a time, for all forests and all partitions into packs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_paths import action_logprobs, credit_of, forest_of, relative, take_gradient, trees
from torch import Tensor

from treadle.algorithms.aggregation import SeqMeanTokenMean, TokenMean
from treadle.algorithms.losses import Loss, LossTerms, Nll, PpoClip
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import pack
from treadle.learner.tree import Sharing, always, never
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy, Scaling
from treadle.testing.forest_edits import cut_actions, shuffle_siblings
from treadle.testing.forests import Node
from treadle.trajectory.forest import Forest

LOSS = PpoClip(eps_low=0.9, eps_high=20.0, dual=200.0)
"""Wide enough that most tokens are inside the clip range and have a gradient, narrow enough that some are not."""


def packed(
    policy: Policy, forest: Forest, budget: int, *, attention: str = "node", rows: int = 7, loss: Loss = LOSS,
    at_once: int = 10_000, shares: Sharing = always,
) -> tuple[float, Tensor, int]:
    """Loss, gradient and number of packs by the learner, which takes `at_once` tokens of a pack in one forward."""
    learner = Learner(policy, LearnerConfig(attention=attention, head_rows=rows, tokens_per_pack=at_once))
    weight, denominator = SeqMeanTokenMean().weights(forest)
    packs = pack(
        forest, credit_of(forest).collapse(forest, weight), denominator=denominator, budget_tokens=budget,
        shares=shares,
    )
    total = sum(learner.accumulate(batch, loss)[0] for batch in packs)
    return total, take_gradient(policy), len(packs)


def one_path_at_a_time(policy: Policy, forest: Forest, loss: Loss = LOSS) -> tuple[float, Tensor]:
    """Loss and gradient without trees, packs or collapsing: each rollout's own forwards and its own advantage."""
    weight, denominator = SeqMeanTokenMean().weights(forest)
    advantage = credit_of(forest).advantage
    total = 0.0
    for r in range(len(forest.rollouts)):
        at = int(forest.rollout_leaf[r])
        while at >= 0:
            if forest.action[at]:
                logp = action_logprobs(policy, forest, at)
                value = loss(logp, flat_terms(forest, at, float(advantage[r]), float(weight[r]), denominator))
                value.backward()
                total += float(value.detach())
            at = int(forest.after[at])
    return total, take_gradient(policy)


def flat_terms(forest: Forest, row: int, advantage: float, weight: float, denominator: float) -> LossTerms:
    recorded = forest.segments[row].logprobs
    assert recorded is not None
    every = torch.ones(len(recorded), dtype=torch.float64)
    return LossTerms(
        old=torch.from_numpy(recorded).double(), pos_w=every * weight * max(advantage, 0),
        neg_w=every * weight * min(advantage, 0), mass=every * weight, denominator=denominator,
    )


many = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(
    seed=st.integers(0, 2**31), budget=st.sampled_from([1, 20, 60, 10_000]),
    attention=st.sampled_from(["node", "sdpa"]), at_once=st.sampled_from([5, 23, 10_000]),
    shares=st.sampled_from([always, never]),
)
def test_in_float64_the_gradient_is_that_of_one_path_at_a_time(
    policy64: Policy, seed: int, budget: int, attention: str, at_once: int, shares: Sharing
):
    """Whatever the budget of packs, the tokens of a forward and the layout."""
    forest = forest_of(trees(seed))
    expected_loss, expected = one_path_at_a_time(policy64, forest)
    got_loss, got, packs = packed(policy64, forest, budget, attention=attention, at_once=at_once, shares=shares)
    assert relative(got, expected) < 1e-12
    assert got_loss == pytest.approx(expected_loss, rel=1e-12, abs=1e-14)
    assert packs > 1 or budget > 20 or len(forest) < 3


@many
@given(seed=st.integers(0, 2**31), budget=st.sampled_from([20, 10_000]), at_once=st.sampled_from([7, 10_000]))
def test_in_float32_the_gradient_is_that_of_one_path_at_a_time(policy: Policy, seed: int, budget: int, at_once: int):
    forest = forest_of(trees(seed))
    expected_loss, expected = one_path_at_a_time(policy, forest)
    got_loss, got, _ = packed(policy, forest, budget, at_once=at_once)
    assert relative(got, expected) < 1e-5
    assert got_loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-7)


def test_with_nll_too_the_gradient_is_that_of_one_path_at_a_time(policy64: Policy):
    forest = forest_of(trees(5))
    expected_loss, expected = one_path_at_a_time(policy64, forest, Nll())
    got_loss, got, _ = packed(policy64, forest, 50, loss=Nll())
    assert relative(got, expected) < 1e-12
    assert got_loss == pytest.approx(expected_loss, rel=1e-12)


@many
@given(seed=st.integers(0, 2**31))
def test_cutting_actions_and_permuting_siblings_and_groups_keeps_loss_and_gradient(policy64: Policy, seed: int):
    roots = trees(seed)
    loss, expected, _ = packed(policy64, forest_of(roots), 10_000)
    rng = np.random.default_rng(seed)
    for other in (
        [cut_actions(root) for root in roots],
        [shuffle_siblings(root, rng) for root in roots],
        roots[::-1],
    ):
        got_loss, got, _ = packed(policy64, forest_of(other), 60)
        assert relative(got, expected) < 1e-12
        assert got_loss == pytest.approx(loss, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_cutting_actions_changes_no_number_of_any_edge(seed: int):
    """A+, A- and mass stand with tokens, and a segment's boundary is none of theirs."""

    def numbers(roots: list[Node]) -> list[list[float]]:
        forest = forest_of(roots)
        weight, denominator = TokenMean().weights(forest)
        collapsed = credit_of(forest).collapse(forest, weight)
        (batch,) = pack(forest, collapsed, denominator=denominator, budget_tokens=10_000)
        columns = (batch.ids[batch.tgt], batch.pos[batch.tgt], batch.terms.pos_w, batch.terms.neg_w, batch.terms.mass)
        return [column.tolist() for column in columns]

    roots = trees(seed)
    assert numbers([cut_actions(root) for root in roots]) == numbers(roots)


def test_the_order_of_the_packs_does_not_matter(policy64: Policy):
    forest = forest_of(trees(11, 4))
    weight, denominator = TokenMean().weights(forest)
    packs = pack(forest, credit_of(forest).collapse(forest, weight), denominator=denominator, budget_tokens=40)
    learner = Learner(policy64, LearnerConfig())
    assert len(packs) > 2
    forth = sum(learner.accumulate(batch, LOSS)[0] for batch in packs)
    one = take_gradient(policy64)
    back = sum(learner.accumulate(batch, LOSS)[0] for batch in packs[::-1])
    assert forth == pytest.approx(back, rel=1e-13)
    assert relative(take_gradient(policy64), one) < 1e-13


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_the_number_of_rows_in_the_head_does_not_matter(policy64: Policy, rows: int):
    forest = forest_of(trees(3))
    assert relative(packed(policy64, forest, 10_000, rows=rows)[1], packed(policy64, forest, 10_000)[1]) < 1e-13


def test_a_temperature_divides_the_logits(policy64: Policy):
    forest = forest_of(trees(8))
    hot = Learner(policy64, LearnerConfig(temperature=2.0)).logprobs(forest)
    for row in np.flatnonzero(forest.action):
        path, at = [], int(row)
        while at >= 0:
            path.append(forest.segments[at].ids)
            at = int(forest.parent[at])
        ids = torch.from_numpy(np.concatenate(path[::-1])).long()
        n = len(forest.segments[row])
        with torch.no_grad():
            states = policy64.hidden(ids, torch.arange(len(ids)), CausalPlan())[-n - 1 : -1]
            expected = (policy64.logits(states) / 2).log_softmax(-1).gather(1, ids[-n:, None])[:, 0]
        np.testing.assert_allclose(hot[forest.segments[row].id], expected.numpy(), atol=1e-6)


def test_a_head_that_is_not_a_plain_product_goes_through_autograd(policy64: Policy, monkeypatch: pytest.MonkeyPatch):
    forest = forest_of(trees(4))
    monkeypatch.setattr(policy64, "_scaling", Scaling(factor=0.5, cap=5.0))
    assert policy64.head_weight is None
    expected_loss, expected = one_path_at_a_time(policy64, forest)
    got_loss, got, _ = packed(policy64, forest, 40)
    assert relative(got, expected) < 1e-12
    assert got_loss == pytest.approx(expected_loss, rel=1e-12)
