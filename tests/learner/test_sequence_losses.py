"""Losses with a first pass: packed in any partition they are the plain sum over rollouts, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_paths import action_logprobs, credit_of, forest_of, relative, take_gradient, trees
from torch import Tensor

from treadle.algorithms.aggregation import SeqMeanTokenMean
from treadle.algorithms.corrections import SequenceMask
from treadle.algorithms.credit import Credit, NodeCredit, PathCredit
from treadle.algorithms.losses import Gspo, Loss, PpoClip, Reinforce
from treadle.algorithms.objective import Objective
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import pack
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest


class Given:
    """A rule that says what it is told."""

    name, needs, scope, min_rollouts = "given", frozenset[str](), "group", 1

    def __init__(self, credit: Credit) -> None:
        self.credit = credit

    def __call__(self, forest: Forest) -> Credit:
        return self.credit


def recorded_near(policy: Policy, forest: Forest, seed: int = 0, spread: float = 0.05) -> Forest:
    """The forest with behaviour log-probs near the policy's own, so that ratios of whole rollouts are near 1."""
    own = Learner(policy, LearnerConfig()).logprobs(forest)
    rng = np.random.default_rng(seed)
    segments = tuple(
        replace(s, logprobs=(np.nan_to_num(own[s.id], nan=-1.0) + rng.normal(size=len(s)) * spread).astype(np.float32))
        if s.logprobs is not None else s
        for s in forest.segments
    )
    return replace(forest, segments=segments)


def packed(policy: Policy, forest: Forest, objective: Objective, credit: Credit, budget: int) -> tuple[Tensor, int]:
    learner = Learner(policy, LearnerConfig(tokens_per_pack=budget, head_rows=5))
    noted = learner.annotate(forest, objective.columns)
    collapsed, denominator = objective.collapse(noted, Given(credit), SeqMeanTokenMean())
    packs = pack(noted, collapsed, denominator=denominator, budget_tokens=budget)
    for batch in packs:
        learner.accumulate(batch, objective)
    return take_gradient(policy), len(packs)


def path_rows(forest: Forest, rollout: int) -> list[int]:
    rows, at = [], int(forest.rollout_leaf[rollout])
    while at >= 0:
        if forest.action[at]:
            rows.append(at)
        at = int(forest.after[at])
    return rows


def plain_gspo(policy: Policy, forest: Forest, loss: Gspo, advantage: Column) -> Tensor:
    """The published loss, rollout by rollout, through autograd."""
    assert loss.dual is not None
    count = len(forest.rollouts)
    for r in range(count):
        logp, old = [], []
        for row in path_rows(forest, r):
            logp.append(action_logprobs(policy, forest, row))
            old.append(torch.from_numpy(forest.segments[row].logprobs).double())
        ratio = (torch.cat(logp) - torch.cat(old)).mean().exp()
        a = float(advantage[r])
        gain = a * (ratio.clamp(max=1 + loss.eps_high) if a > 0 else ratio.clamp(1 - loss.eps_low, loss.dual))
        (-gain / count).backward()
    return take_gradient(policy)


@pytest.mark.parametrize("budget", [1, 25, 10_000])
@pytest.mark.parametrize("eps", [3e-4, 0.01, 0.2])
def test_gspo_packed_is_the_published_loss_rollout_by_rollout(policy64: Policy, budget: int, eps: float) -> None:
    loss = Gspo(eps_low=eps, eps_high=eps)
    for seed in (3, 4):
        forest = recorded_near(policy64, forest_of(trees(seed)))
        credit = credit_of(forest)
        expected = plain_gspo(policy64, forest, loss, credit.advantage)
        got, packs = packed(policy64, forest, Objective(loss=loss), credit, budget)
        assert relative(got, expected) < 1e-12
        assert packs > 1 or budget > 25
        assert expected.norm() > 0 or eps < 0.01


def test_gspo_takes_a_token_s_own_advantage_where_they_differ(policy64: Policy) -> None:
    forest = recorded_near(policy64, forest_of(trees(5)), spread=0.01)
    advantage = np.random.default_rng(1).normal(size=len(forest))
    objective = Objective(loss=Gspo(eps_low=0.5, eps_high=0.5))
    got, _ = packed(policy64, forest, objective, NodeCredit(advantage=advantage), 30)
    weight, denominator = SeqMeanTokenMean().weights(forest)
    logp = {row: action_logprobs(policy64, forest, row) for row in np.flatnonzero(forest.action).tolist()}
    ratios = []
    for r in range(len(forest.rollouts)):
        apart = [logp[row].detach() - torch.from_numpy(forest.segments[row].logprobs).double()
                 for row in path_rows(forest, r)]  # fmt: skip
        ratios.append(float(torch.cat(apart).mean().exp()))
    share = forest.up(forest.at_leaves(weight * np.array(ratios)))
    total = sum(-share[row] * advantage[row] * values.sum() for row, values in logp.items()) / denominator
    assert isinstance(total, Tensor)
    total.backward()
    assert relative(got, take_gradient(policy64)) < 1e-12


@pytest.mark.parametrize("loss", [PpoClip(eps_low=0.9, eps_high=20.0), Reinforce()])
def test_a_sequence_mask_leaves_out_whole_rollouts_and_keeps_the_denominator(policy64: Policy, loss: Loss) -> None:
    forest = recorded_near(policy64, forest_of(trees(6)), spread=0.6)
    credit = credit_of(forest)
    objective = Objective(loss=loss, correction=SequenceMask(cap=1.5, low=0.5))
    noted = Learner(policy64, LearnerConfig()).annotate(forest, objective.columns)
    kept = SequenceMask(cap=1.5, low=0.5).on_rollouts(noted)
    assert 0 < kept.sum() < len(kept)
    got, _ = packed(policy64, forest, objective, credit, 30)
    plain = Objective(loss=loss, prox="learner")
    expected, _ = packed(policy64, forest, plain, PathCredit(advantage=credit.advantage * kept), 30)
    assert relative(got, expected) < 1e-12
    for r, rollout in enumerate(forest.rollouts):
        apart = [noted.note("prox")[forest.start[row] : forest.start[row + 1]] - forest.segments[row].logprobs
                 for row in path_rows(forest, r)]  # fmt: skip
        product = float(np.exp(np.concatenate(apart).sum()))
        assert kept[r] == (0.5 <= product <= 1.5), rollout.id


def test_a_proximal_column_makes_the_ratio_one_and_the_gradient_the_corrected_policy_gradient(policy64: Policy) -> None:
    """What a learner that steps once per batch makes of decoupled losses."""
    from treadle.algorithms.corrections import Tis

    forest = recorded_near(policy64, forest_of(trees(7)), spread=0.4)
    credit = credit_of(forest)
    got, _ = packed(policy64, forest, Objective(loss=PpoClip(), correction=Tis(), prox="learner"), credit, 40)
    expected, _ = packed(policy64, forest, Objective(loss=Reinforce(), correction=Tis()), credit, 10_000)
    assert relative(got, expected) < 1e-12
