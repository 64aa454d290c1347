"""Losses against numbers worked out by hand, and the promises that the learner relies on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.losses import LOSSES, LossTerms, Nll, PpoClip

NEW, OLD = [-1.0, -2.0, -0.5], [-1.2, -1.5, -0.6]


def terms(old: list[float], pos: list[float], neg: list[float], *, denominator: float = 1.0) -> LossTerms:
    wide = [torch.tensor(column, dtype=torch.float64) for column in (old, pos, neg)]
    return LossTerms(old=wide[0], pos_w=wide[1], neg_w=wide[2], mass=wide[1] - wide[2], denominator=denominator)


def per_token(chosen: PpoClip, new: list[float], given_: LossTerms) -> list[float]:
    logp = torch.tensor(new, dtype=torch.float64)
    return [float(chosen(logp[i : i + 1], given_.part(i, i + 1))) for i in range(len(new))]


def test_ppo_clips_a_gain_from_above():
    got = per_token(PpoClip(), NEW, terms(OLD, [1, 1, 1], [0, 0, 0]))
    assert got == pytest.approx([-1.221403, -0.606531, -1.105171], abs=1e-6)
    assert per_token(PpoClip(), [0.0], terms([-1.0], [1], [0])) == pytest.approx([-1.28])


def test_ppo_dual_clip_bounds_the_ratio_of_a_bad_token():
    new = [math.log(r) for r in (0.5, 1.5, 4.0)]
    assert per_token(PpoClip(), new, terms([0, 0, 0], [0, 0, 0], [-1, -1, -1])) == pytest.approx([0.8, 1.5, 3.0])


def test_without_dual_the_ratio_of_a_bad_token_is_not_bounded():
    assert per_token(PpoClip(dual=None), [math.log(40.0)], terms([0], [0], [-1])) == pytest.approx([40.0])


def test_a_clipped_token_has_no_gradient():
    logp = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    PpoClip()(logp, terms([0, 0, 0], [1, 0, 0], [0, -1, -1])).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, 0.0, 0.0]


def test_on_policy_the_gradient_is_the_policy_gradient():
    logp = torch.tensor(OLD, dtype=torch.float64, requires_grad=True)
    PpoClip()(logp, terms(OLD, [2, 0, 1], [0, -3, -0.5], denominator=4)).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-0.5, 0.75, -0.125])


def test_a_ratio_too_large_for_a_float_stays_finite():
    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    column = torch.tensor([1.0, 0.0])
    far = LossTerms(old=torch.tensor([-500.0, -500.0]), pos_w=column, neg_w=column - 1, mass=column, denominator=1)
    value = PpoClip()(logp, far)
    value.backward()
    assert torch.isfinite(value)
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, 0.0]


def test_nll_weighs_by_mass_and_ignores_advantages():
    given_ = LossTerms(
        old=torch.full((2,), math.nan), pos_w=torch.tensor([9.0, 0.0]), neg_w=torch.tensor([0.0, -9.0]),
        mass=torch.tensor([1.0, 2.0]), denominator=2.0,
    )
    assert float(Nll()(torch.tensor([-1.0, -3.0]), given_)) == pytest.approx(3.5)


def test_the_report_counts_what_was_clipped():
    new = [1.0, 0.0, -1.0, 0.0, 2.0]
    report = PpoClip().report(
        torch.tensor(new, dtype=torch.float64), terms([0] * 5, [1, 1, 0, 0, 0], [0, 0, -1, -1, -1])
    )
    assert report["clip_share"] == 2
    assert report["dual_clip_share"] == 1
    assert report["ratio"] == pytest.approx(sum(math.exp(x) for x in new))
    assert report["kl"] == pytest.approx(sum(math.exp(x) - 1 - x for x in new))


@pytest.mark.parametrize("name", sorted(LOSSES))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_loss_is_the_sum_of_the_losses_of_any_partition(name: str, data: st.DataObject):
    n = data.draw(st.integers(1, 12))
    at = data.draw(st.integers(0, n))
    numbers = st.floats(-3, 3)
    column = lambda: data.draw(st.lists(numbers, min_size=n, max_size=n))  # noqa: E731
    pos, neg = [abs(x) for x in column()], [-abs(x) for x in column()]
    whole, logp = terms(column(), pos, neg, denominator=3), torch.tensor(column(), dtype=torch.float64)
    chosen = LOSSES[name]()
    parts = chosen(logp[:at], whole.part(0, at)) + chosen(logp[at:], whole.part(at, n))
    assert float(chosen(logp, whole)) == pytest.approx(float(parts), rel=1e-12, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    ratios=st.lists(st.floats(0.01, 10), min_size=1, max_size=1),
    advantages=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
)
def test_one_collapsed_token_equals_the_sum_over_its_rollouts(ratios: list[float], advantages: list[float]):
    new = [math.log(ratios[0])]
    pos, neg = sum(max(a, 0) for a in advantages), sum(min(a, 0) for a in advantages)
    together = per_token(PpoClip(), new, terms([0], [pos], [neg]))[0]
    apart = sum(per_token(PpoClip(), new, terms([0], [max(a, 0)], [min(a, 0)]))[0] for a in advantages)
    assert together == pytest.approx(apart, rel=1e-12, abs=1e-12)
