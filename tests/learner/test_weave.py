"""Weaving: equal tokens in equal contexts are computed once, and nothing about the loss changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import CreditRule, assign
from treadle.algorithms.group_baseline import DrGrpo, Grpo
from treadle.algorithms.losses import Loss, Nll, PpoClip
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import pack
from treadle.learner.weave import weave
from treadle.models import Policy
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

Turns = list[tuple[list[int], list[int]]]
"""(sampled ids, observed ids) of each turn; the last observation is not used."""


def completion(ids: list[int], *, shift: float = 0.0, version: int = 0) -> Completion:
    """Log-probs that depend on the ids alone, as those of one policy in one context do."""
    logprobs = np.array([-1.0 - (token % 7) / 8 + shift for token in ids], dtype=np.float32)
    return Completion(
        ids=np.array(ids, dtype=np.int32), logprobs=logprobs, entropy=np.ones(len(ids), np.float32),
        versions=((version, len(ids)),), kv_version=version, finish=Finish.STOP,
    )


def group(plays: list[Turns], rewards: list[float], *, prompt: list[int], id: str = "g", shift: float = 0.0) -> Group:
    """A group whose rollouts said these things; rollout i > 0 has log-probs shifted by i * shift."""
    made = Group(GroupKey(id=id, ticket=0, task="t", family="", split="train", admitted_version=0))
    root = made.prompt(np.array(prompt, dtype=np.int32))
    for index, (turns, reward) in enumerate(zip(plays, rewards, strict=True)):
        rollout, at = made.begin(index).id, root
        for turn, (said, seen) in enumerate(turns):
            at = made.sampled(rollout, completion(said, shift=index * shift), after=at, turn=turn)
            if turn + 1 < len(turns):
                at = made.observed(rollout, np.array(seen, dtype=np.int32), after=at, turn=turn)
        made.pay(rollout, "correct", reward)
        made.end(rollout, OK)
    return made


def tokens(forest: Forest, tolerance: float | None) -> int:
    collapsed, _ = assign(forest, DrGrpo(), TokenMean())
    return sum(len(strand) for strand in weave(forest, collapsed, tolerance=tolerance))


def test_rollouts_that_say_the_same_are_computed_once() -> None:
    same: Turns = [([5, 6, 7], [8, 9]), ([10], [])]
    forest = Forest.of([group([same, same, [([5, 6, 11], [])]], [1, 1, 0], prompt=[1, 2, 3])])
    assert tokens(forest, None) == 3 + 6 + 6 + 3
    assert tokens(forest, 0.0) == 3 + 6 + 1


def test_groups_share_the_beginning_of_their_prompts() -> None:
    one = group([[([5], [])], [([6], [])]], [1, 0], prompt=[1, 2, 3], id="g1")
    two = group([[([5], [])], [([6], [])]], [1, 0], prompt=[1, 2, 4], id="g2")
    assert tokens(Forest.of([one, two]), 0.0) == 4 + 2 + 2


def test_tokens_of_two_policies_stay_apart() -> None:
    said: Turns = [([5, 6], [])]
    forest = Forest.of([group([said, said], [1, 0], prompt=[1], shift=0.01)])
    assert tokens(forest, 1e-4) == 1 + 2 + 2
    assert tokens(forest, 0.1) == 1 + 2


def test_an_edge_stands_for_all_its_tokens() -> None:
    said: Turns = [([5, 6], [])]
    forest = Forest.of([group([said, said, [([5, 7], [])]], [1, 1, 0], prompt=[1])])
    collapsed, denominator = assign(forest, DrGrpo(), TokenMean())
    woven = pack(forest, collapsed, denominator=denominator, budget_tokens=100, tolerance=0.0)
    assert sum(batch.edges for batch in woven) == 3
    assert sum(batch.trained for batch in woven) == 6
    assert sorted(woven[0].copies.tolist()) == [1, 2, 3]
    assert woven[0].terms.mass.sum() == pytest.approx(6.0)


@pytest.fixture(scope="session")
def learner(policy64: Policy) -> Learner:
    return Learner(policy64, LearnerConfig(head_rows=16))


def gradient(
    learner: Learner, forest: Forest, method: tuple[CreditRule, Loss], budget: int, tolerance: float | None
) -> tuple[float, torch.Tensor]:
    rule, loss = method
    collapsed, denominator = assign(forest, rule, TokenMean())
    packs = pack(forest, collapsed, denominator=denominator, budget_tokens=budget, tolerance=tolerance)
    value = sum(learner.accumulate(batch, loss)[0] for batch in packs)
    parameters = [p for p in learner.policy.module.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    for parameter in parameters:
        parameter.grad = None
    return value, flat


word = st.lists(st.integers(5, 7), min_size=1, max_size=3)
plays = st.lists(st.lists(st.tuples(word, word), min_size=1, max_size=3), min_size=2, max_size=5)


@given(plays=plays, other=plays, budget=st.integers(4, 60), data=st.data())
def test_woven_equals_unwoven(
    learner: Learner, plays: list[Turns], other: list[Turns], budget: int, data: st.DataObject
) -> None:
    def rewards(of: list[Turns]) -> list[float]:
        return data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(of), max_size=len(of)))

    one = group(plays, rewards(plays), prompt=[1, 2, 3], id="g1")
    two = group(other, rewards(other), prompt=[1, 2, 4], id="g2")
    forest = Forest.of([one, two])
    for method in ((Grpo(), PpoClip()), (DrGrpo(), Nll())):
        plain, reference = gradient(learner, forest, method, 10_000, None)
        woven, found = gradient(learner, forest, method, budget, 0.0)
        assert woven == pytest.approx(plain, rel=1e-12, abs=1e-13)
        assert (found - reference).norm() <= 1e-12 * (float(reference.norm()) + 1.0)  # opposite rollouts cancel
