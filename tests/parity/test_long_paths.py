"""A path over the budget is computed in runs of tokens: the same numbers, never more than a run at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

PROMPT, TOKENS = 20, 180


def forest() -> Forest:
    """Two rollouts of a prompt and one long action each: paths of 200 tokens."""
    random = np.random.default_rng(3)
    group = Group(GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0))
    prompt = group.prompt(random.integers(3, 250, PROMPT).astype(np.int32))
    for index in range(2):
        rollout = group.begin(index)
        noise = random.normal(-5.5, 0.1, TOKENS).astype(np.float32)
        group.sampled(rollout.id, Completion(
            ids=random.integers(3, 250, TOKENS).astype(np.int32), logprobs=noise, entropy=-noise,
            versions=((0, TOKENS),), kv_version=0, finish=Finish.STOP,
        ), after=prompt, turn=0)
        group.pay(rollout.id, "correct", float(index))
        group.end(rollout.id, OK)
    return Forest.of([group])


def packs(budget: int) -> list[PackedBatch]:
    known = forest()
    collapsed, denominator = assign(known, RULES["grpo"](), TokenMean())
    return pack(known, collapsed, denominator=denominator, budget_tokens=budget)


def gradient(policy: Policy, config: LearnerConfig, budget: int) -> tuple[float, Tensor]:
    learner = Learner(policy, config)
    if policy.adapters is not None:
        with torch.no_grad():
            for parameter in policy.adapters.parameters():
                parameter.copy_(torch.linspace(-0.1, 0.2, parameter.numel()).reshape(parameter.shape))
    loss = sum(learner.accumulate(batch, PpoClip())[0] for batch in packs(budget))
    found = torch.cat([p.grad.flatten().clone() for p in policy.module.parameters() if p.grad is not None])
    learner._drop_gradients()
    if policy.adapters is not None:
        policy.adapters.reset()
    return loss, found


@pytest.mark.parametrize("at_once", [1, 7, 64, 150, 199])
def test_in_runs_of_any_length_loss_and_gradient_are_those_of_the_whole(policy64: Policy, at_once: int) -> None:
    loss, expected = gradient(policy64, LearnerConfig(tokens_per_pack=10_000), 10_000)
    got_loss, got = gradient(policy64, LearnerConfig(tokens_per_pack=at_once), at_once)
    assert [batch.tokens for batch in packs(at_once)] == [PROMPT + TOKENS] * 2
    assert float((got - expected).norm() / expected.norm()) < 1e-12
    assert got_loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("extra", [
    {"recompute": True}, {"top_layers": 1}, {"top_layers": 1, "memo_tokens": 0, "recompute": True}, {"lora_rank": 2},
    {"attention": "sdpa"},
], ids=str)
def test_so_they_are_with_whatever_else_saves_memory(policy64: Policy, extra: dict[str, int]) -> None:
    _, expected = gradient(policy64, LearnerConfig(tokens_per_pack=10_000, **extra), 10_000)
    _, got = gradient(policy64, LearnerConfig(tokens_per_pack=40, **extra), 40)
    assert expected.norm() > 0
    assert float((got - expected).norm() / expected.norm()) < 1e-12
    Learner(policy64, LearnerConfig())


def test_no_forward_takes_more_tokens_than_the_budget(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, bool]] = []
    hidden = policy.hidden

    def watched(ids: Tensor, *rest: object) -> Tensor:
        taken.append((len(ids), torch.is_grad_enabled()))
        return hidden(ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "hidden", watched)
    learner = Learner(policy, LearnerConfig(tokens_per_pack=64))
    report = learner.update(packs(64), PpoClip())
    assert not report.skipped
    assert taken == 2 * [*3 * [(64, False)], (8, True), *3 * [(64, True)]]


def test_log_probs_of_long_paths_are_those_of_the_whole(tiny_folder: Path) -> None:
    known, policy = forest(), Policy.load(tiny_folder)
    whole = Learner(policy, LearnerConfig(tokens_per_pack=10_000)).logprobs(known)
    runs = Learner(policy, LearnerConfig(tokens_per_pack=33)).logprobs(known)
    assert len(whole) == 2
    for segment, expected in whole.items():
        np.testing.assert_allclose(runs[segment], expected, atol=1e-5)
        assert np.isfinite(expected).all()


def test_states_that_a_memo_has_are_not_computed_again(tiny_folder: Path) -> None:
    """The first learner fills the memo with whole packs, and what goes in runs begins at the boundary."""
    policy, found = Policy.load(tiny_folder), []
    for at_once in (10_000, 40):
        learner = Learner(policy, LearnerConfig(top_layers=1, memo_tokens=1000, tokens_per_pack=10_000))
        for batch in packs(64):
            learner.accumulate(batch, PpoClip())
        learner._drop_gradients()
        learner.pack_tokens = at_once
        before = policy.memo.found if policy.memo is not None else 0
        for batch in packs(64):
            learner.accumulate(batch, PpoClip())
        assert policy.memo is not None
        assert policy.memo.found - before == 2 * (PROMPT + TOKENS)
        found.append(torch.cat([p.grad.flatten().clone() for p in policy.module.parameters() if p.grad is not None]))
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1e-5
