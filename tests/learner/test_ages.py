"""Ratio, KL and effective sample size of trained tokens, by their age: a hand example, and what a learner tells."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import Collapsed, assign
from treadle.algorithms.group_baseline import DrGrpo
from treadle.algorithms.losses import MOST_LOG_RATIO, Nll, PpoClip
from treadle.learner.ages import Age, AgeMeter
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.pipeline.trainer import LearnerTrainer
from treadle.testing.forests import Node, grow
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group
from treadle.trajectory.segment import Author

LN2 = math.log(2.0)


def meter(version: int, logp: list[float], old: list[float], versions: list[int], copies: list[int]) -> AgeMeter:
    made = AgeMeter(version)
    made.add(
        torch.tensor(logp, dtype=torch.float64), torch.tensor(old, dtype=torch.float64),
        versions=np.array(versions), copies=np.array(copies),
    )
    return made


def test_the_hand_example() -> None:
    """At version 5: two tokens of now, whose ratio is 1; two that are two versions old, with the ratios 2 and 1/2."""
    found = meter(5, [-1.0, -3.0, -1.0, -1.0 - LN2], [-1.0, -3.0, -1.0 - LN2, -1.0], [5, 5, 3, 3], [1] * 4).read()
    assert list(found) == [0, 2]
    assert found[0] == Age(tokens=2, ratio=1.0, kl=0.0, ess=1.0)
    old = found[2]
    assert old.tokens == 2
    assert old.ratio == pytest.approx(1.25, rel=1e-12)
    assert old.kl == pytest.approx(0.25, rel=1e-12)  # ((2 - 1 - ln 2) + (1/2 - 1 + ln 2)) / 2
    assert old.ess == pytest.approx(2.5**2 / (2 * 4.25), rel=1e-12)


def test_an_edge_counts_for_all_its_tokens() -> None:
    """Three tokens of ratio 2 in one edge, one of ratio 1/2."""
    (found,) = meter(1, [0.0, -LN2], [-LN2, 0.0], [0, 0], [3, 1]).read().values()
    assert found.tokens == 4
    assert found.ratio == pytest.approx(6.5 / 4, rel=1e-12)
    assert found.kl == pytest.approx((3 * (1 - LN2) + (LN2 - 0.5)) / 4, rel=1e-12)
    assert found.ess == pytest.approx(6.5**2 / (4 * 12.25), rel=1e-12)


def test_packs_add_up() -> None:
    whole = meter(2, [-1.0, -2.0, -0.5], [-1.5, -1.0, -0.25], [0, 1, 0], [1, 2, 1])
    parts = meter(2, [-1.0], [-1.5], [0], [1])
    parts.add(torch.tensor([-2.0, -0.5]).double(), torch.tensor([-1.0, -0.25]).double(), versions=np.array([1, 0]),
              copies=np.array([2, 1]))  # fmt: skip
    assert parts.read() == whole.read()


def test_what_nobody_sampled_has_no_age() -> None:
    assert meter(3, [-1.0], [math.nan], [-1], [1]).read() == {}
    assert meter(3, [], [], [], []).read() == {}


def test_ratios_are_cut_as_in_the_loss() -> None:
    (found,) = meter(1, [0.0], [-1000.0], [1], [1]).read().values()
    assert found.ratio == pytest.approx(math.exp(MOST_LOG_RATIO))
    assert found.ess == pytest.approx(1.0)


# -- versions of packed tokens ---------------------------------------------------------------------------------


def said(name: str, ids: tuple[int, ...], *, reward: float = 0.0, versions: tuple[tuple[int, int], ...] = (),
         logprobs: tuple[float, ...] = (), author: Author = Author.POLICY) -> Node:
    return Node(name=name, author=author, ids=ids, reward=reward, versions=versions, logprobs=logprobs)


def group(*members: Node, prompt: tuple[int, ...] = (5, 6, 7)) -> Group:
    return grow(Node(name="p", author=Author.ENV, ids=prompt, children=members)).group


def packed(forest: Forest, *, tolerance: float | None, budget: int = 100) -> list[PackedBatch]:
    collapsed, denominator = assign(forest, DrGrpo(), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=budget, tolerance=tolerance)


def test_every_edge_knows_the_version_that_sampled_its_token() -> None:
    forest = Forest.of([group(
        said("a", (10, 11, 12), reward=1.0, versions=((3, 2), (4, 1))), said("b", (13, 14), versions=((4, 2),)),
    )])
    (batch,) = packed(forest, tolerance=None)
    seen = {int(batch.ids[tgt]): int(version) for tgt, version in zip(batch.tgt, batch.version, strict=True)}
    assert seen == {10: 3, 11: 3, 12: 4, 13: 4, 14: 4}


def test_packs_of_any_size_know_the_same_versions() -> None:
    forest = Forest.of([group(
        said("a", (10, 11, 12), reward=1.0, versions=((3, 2), (4, 1))), said("b", (13, 14), versions=((4, 2),)),
    )])
    packs = packed(forest, tolerance=None, budget=6)
    assert len(packs) == 2
    seen = [(int(b.ids[tgt]), int(v)) for b in packs for tgt, v in zip(b.tgt, b.version, strict=True)]
    assert sorted(seen) == [(10, 3), (11, 3), (12, 4), (13, 4), (14, 4)]


def test_demonstrated_tokens_have_no_version() -> None:
    forest = Forest.of([group(said("d", (10, 11), author=Author.DEMO))])
    ones = np.where(forest.action, 1.0, 0.0)
    (batch,) = pack(forest, Collapsed(pos=ones, neg=0 * ones, mass=ones), denominator=1.0, budget_tokens=100)
    assert batch.version.tolist() == [-1, -1]


def test_a_token_that_trains_gives_its_version_to_what_does_not() -> None:
    """The world says first what a rollout then samples in the same context: the edge is the rollout's."""
    world = said("w", (10, 11), author=Author.ENV)
    after = Node(name="x", author=Author.POLICY, ids=(12,), versions=((1, 1),), reward=1.0)
    first = Node(name="w", author=world.author, ids=world.ids, children=(after,))
    forest = Forest.of([group(first, said("a", (10, 11), versions=((2, 2),)))])
    (batch,) = packed(forest, tolerance=1e-4)
    seen = {int(batch.ids[tgt]): int(version) for tgt, version in zip(batch.tgt, batch.version, strict=True)}
    assert seen == {10: 2, 11: 2, 12: 1}


# -- what a learner tells --------------------------------------------------------------------------------------


def at_version(policy: Policy, version: int) -> None:
    with policy.gate.write("test", timeout_s=5):
        policy.version = version


def test_an_update_tells_every_age_of_its_tokens(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(lr=1e-3))
    at_version(policy, 4)
    shift = {2: -0.5, 4: 0.0}
    now = learner.logprobs(Forest.of([mixed_ages({2: 0.0, 4: 0.0}, None)]))
    report = learner.update(packed(Forest.of([mixed_ages(shift, now)]), tolerance=0.0, budget=5), PpoClip())
    assert {age: held.tokens for age, held in report.ages.items()} == {0: 3, 2: 2}
    assert sum(held.tokens for held in report.ages.values()) == report.tokens_trained
    assert report.ages[0].ratio == pytest.approx(1.0, abs=1e-5)
    assert report.ages[0].kl == pytest.approx(0.0, abs=1e-8)
    assert report.ages[2].ratio == pytest.approx(math.exp(0.5), rel=1e-5)
    assert report.ages[2].kl == pytest.approx(math.exp(0.5) - 1.5, rel=1e-4)
    assert report.ages[2].ess == pytest.approx(1.0, abs=1e-6)
    all_tokens = sum(held.tokens * held.ratio for held in report.ages.values()) / report.tokens_trained
    assert report.stats["ratio"] == pytest.approx(all_tokens, rel=1e-5)


def mixed_ages(shift: dict[int, float], now: dict[str, np.ndarray] | None) -> Group:
    """Two rollouts: one of version 2, one of version 4; their recorded log-probs are those of now, shifted."""
    def logprobs(segment: str, version: int) -> tuple[float, ...]:
        return () if now is None else tuple(float(x) + shift[version] for x in now[segment])

    made = group(
        said("a", (10, 11), reward=1.0, versions=((2, 2),), logprobs=logprobs("g0:00001", 2)),
        said("b", (12, 13, 14), versions=((4, 3),), logprobs=logprobs("g0:00002", 4)),
    )
    assert list(made.segments) == ["g0:00000", "g0:00001", "g0:00002"]
    return made


def test_imitation_has_no_ages(policy: Policy) -> None:
    forest = Forest.of([group(said("d", (10, 11), author=Author.DEMO))])
    ones = np.where(forest.action, 1.0, 0.0)
    packs = pack(forest, Collapsed(pos=ones, neg=0 * ones, mass=ones), denominator=1.0, budget_tokens=100)
    assert Learner(policy, LearnerConfig(lr=1e-3)).update(packs, Nll()).ages == {}


def test_a_trainer_names_every_number_by_its_age(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(lr=1e-3, max_skew=None))
    at_version(policy, 4)
    trainer = LearnerTrainer(learner, rule=DrGrpo(), aggregation=TokenMean(), loss=PpoClip())
    told = trainer.train([mixed_ages({2: 0.0, 4: 0.0}, None)]).ages
    assert sorted(told) == [f"{age}.{name}" for age in (0, 2) for name in ("ess", "kl", "ratio", "tokens")]
    assert (told["0.tokens"], told["2.tokens"]) == (3, 2)
