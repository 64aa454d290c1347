"""Every loss, correction and penalty against the golden numbers, and their gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from treadle.algorithms.corrections import CORRECTIONS, Correction, Decoupled, Icepop, Tis
from treadle.algorithms.kl import Kl
from treadle.algorithms.losses import LOSSES, Cispo, DppoTv, Loss, LossTerms, PpoClip, Reinforce, Sapo
from treadle.algorithms.objective import Objective
from treadle.core.errors import ConfigError

NEW, OLD, ROLL = [-1.0, -2.0, -0.5], [-1.2, -1.5, -0.6], [-1.4, -1.5, -3.0]


def wide(column: list[float]) -> Tensor:
    return torch.tensor(column, dtype=torch.float64)


def terms(
    old: list[float], *, prox: list[float] | None = None, ref: list[float] | None = None, sign: float = 1.0
) -> LossTerms:
    ones = torch.ones(len(old), dtype=torch.float64)
    return LossTerms(
        old=wide(old), pos_w=ones * max(sign, 0), neg_w=ones * min(sign, 0), mass=ones, denominator=1.0,
        prox=None if prox is None else wide(prox), ref=None if ref is None else wide(ref),
    )


def per_token(loss: Loss | Objective, new: list[float], given: LossTerms) -> list[float]:
    return [float(loss(wide(new)[i : i + 1], given.part(i, i + 1))) for i in range(len(new))]


def test_cispo_weighs_log_probs_by_clipped_ratios() -> None:
    ratios = [min(max(math.exp(n - o), 0.8), 1.28) for n, o in zip(NEW, OLD, strict=True)]
    expected = [-r * n for r, n in zip(ratios, NEW, strict=True)]
    assert per_token(Cispo(), NEW, terms(OLD)) == pytest.approx(expected)
    assert per_token(Cispo(), NEW, terms(OLD)) == pytest.approx([1.221403, 1.6, 0.552585], abs=1e-6)


def test_cispo_takes_no_gradient_through_the_weight_and_from_no_token() -> None:
    logp = wide([1.0, -3.0]).requires_grad_()
    Cispo()(logp, terms([0.0, 0.0])).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.28, -0.8])


def test_sapo_closes_its_gate_as_the_golden_numbers_say() -> None:
    def gates(tau: float) -> list[float]:
        ratios = [math.exp(n - o) for n, o in zip(NEW, OLD, strict=True)]
        return [4 / tau / (1 + math.exp(-tau * (r - 1))) for r in ratios]

    assert per_token(Sapo(), NEW, terms(OLD)) == pytest.approx([-g for g in gates(1.0)])
    assert per_token(Sapo(), NEW, terms(OLD, sign=-1.0)) == pytest.approx(gates(1.05))


def test_sapo_on_policy_is_the_policy_gradient() -> None:
    logp = wide(OLD).requires_grad_()
    Sapo()(logp, terms(OLD)).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, -1.0, -1.0])


def test_dppo_masks_by_the_change_of_a_probability() -> None:
    new, old = [math.log(0.9), math.log(0.5)], [math.log(0.6), math.log(0.45)]
    assert per_token(DppoTv(), new, terms(old)) == pytest.approx([0.0, -0.5 / 0.45])
    assert per_token(DppoTv(), old, terms(new, sign=-1.0)) == pytest.approx([0.0, 0.9])
    assert per_token(DppoTv(cap=1.05), new, terms(old)) == pytest.approx([0.0, -1.05])


def test_reinforce_is_the_log_prob_times_the_advantage() -> None:
    assert per_token(Reinforce(), NEW, terms(OLD)) == pytest.approx([1.0, 2.0, 0.5])


@pytest.mark.parametrize(
    ("correction", "expected"),
    [(Tis(), [1.221403, 1.0, 2.0]), (Icepop(), [1.221403, 1.0, 0.0]), (Decoupled(), [1.221403, 1.0, 5.0])],
)
def test_token_corrections_weigh_by_proximal_over_behaviour(correction: Correction, expected: list[float]) -> None:
    corrected = correction.on_edges(wide(NEW), terms(ROLL, prox=OLD))
    assert corrected.pos_w.tolist() == pytest.approx(expected, abs=1e-6)
    assert corrected.mass.tolist() == [1, 1, 1]


def test_decoupled_ppo_gives_the_golden_losses() -> None:
    chosen = Objective(loss=PpoClip(eps_high=0.2), correction=Decoupled())
    got = per_token(chosen, NEW, terms(ROLL, prox=OLD))
    ratios = [math.exp(n - o) for n, o in zip(NEW, OLD, strict=True)]
    weights = [min(math.exp(o - b), 5.0) for o, b in zip(OLD, ROLL, strict=True)]
    assert got == pytest.approx([-min(r, 1.2) * w for r, w in zip(ratios, weights, strict=True)])
    assert got == pytest.approx([-1.465683, -0.606531, -5.525855], abs=1e-6)


def test_reinforce_with_tis_weighs_by_new_over_behaviour_and_takes_no_gradient_through_it() -> None:
    logp = wide(NEW).requires_grad_()
    Objective(loss=Reinforce(), correction=Tis())(logp, terms(ROLL)).backward()
    weights = [min(math.exp(n - b), 2.0) for n, b in zip(NEW, ROLL, strict=True)]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-w for w in weights])


@pytest.mark.parametrize(("estimate", "expected"), [("k1", 0.2), ("k2", 0.02), ("k3", math.exp(-0.2) - 1 + 0.2)])
def test_kl_estimates_are_the_golden_ones(estimate: str, expected: float) -> None:
    assert float(Kl(estimate=estimate).of(wide([0.2]))) == pytest.approx(expected)
    plain, given = Reinforce(), terms(OLD, ref=[n - 0.2 for n in NEW])
    penalised = Objective(loss=plain, kl=Kl(estimate=estimate, coefficient=2.0))
    assert float(penalised(wide(NEW), given) - plain(wide(NEW), given)) == pytest.approx(3 * 2 * expected)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("correction", [None, *sorted(CORRECTIONS)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradients_are_those_of_finite_differences(name: str, correction: str | None, sign: float) -> None:
    held = None if correction is None else CORRECTIONS[correction]()
    chosen = Objective(loss=LOSSES[name](), correction=held, kl=Kl(), prox="learner")
    given = terms([-1.25, -1.75, -0.3], prox=[-1.15, -1.95, -0.45], ref=[-1.0, -2.2, -0.7], sign=sign)
    logp = wide([-1.1, -2.0, -0.5]).requires_grad_()
    (grad,) = torch.autograd.grad(chosen(logp, given), logp)
    if name in ("cispo", "gspo"):  # weights are constants by definition: their slope is known
        frozen = -1.0 if name == "gspo" else None
        weight = (logp.detach() - given.anchor).exp().clamp(0.8, 1.28) * -1 if frozen is None else frozen
        corrected = given if held is None else held.on_edges(logp.detach(), given)
        slope = Kl().coefficient * (1 - (given.ref - logp.detach()).exp()) if given.ref is not None else 0
        assert grad.tolist() == pytest.approx(((corrected.pos_w + corrected.neg_w) * weight + slope).tolist())
        return
    step = 1e-6
    for i in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[i] = step
        high, low = (float(chosen(logp.detach() + s, given)) for s in (shift, -shift))
        assert float(grad[i]) == pytest.approx((high - low) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("correction", ["tis", "icepop"])
def test_a_correction_without_a_proximal_policy_is_refused_unless_the_loss_is_reinforce(correction: str) -> None:
    held = CORRECTIONS[correction]()
    with pytest.raises(ConfigError, match=rf"algorithm\.correction={correction} contradicts algorithm\.prox=behaviour"):
        Objective(loss=PpoClip(), correction=held)
    assert Objective(loss=PpoClip(), correction=held, prox="learner").columns == {"prox"}
    assert Objective(loss=Reinforce(), correction=held).columns == set()


@pytest.mark.parametrize(
    ("loss", "bounded"),
    [(PpoClip(), True), (PpoClip(dual=None), False), (Reinforce(), False), (DppoTv(), False), (DppoTv(cap=4.0), True),
     (Cispo(), True), (Sapo(), True)],
)  # fmt: skip
def test_ratios_without_a_bound_are_refused_where_tokens_may_be_stale(loss: Loss, bounded: bool) -> None:
    chosen = Objective(loss=loss)
    chosen.require_bounded(0)
    if bounded:
        chosen.require_bounded(2)
    else:
        with pytest.raises(ConfigError, match=rf"algorithm\.loss={loss.name} contradicts a staleness of up to 2"):
            chosen.require_bounded(2)


def test_reinforce_may_be_stale_when_it_is_corrected() -> None:
    chosen = Objective(loss=Reinforce(), correction=Tis())
    chosen.require_bounded(3)
    assert not chosen.loss.bounded


def test_the_objective_reports_the_mean_weight_and_the_distance_from_the_reference() -> None:
    chosen = Objective(loss=PpoClip(), correction=Tis(), kl=Kl(), prox="learner")
    report = chosen.report(wide(NEW), terms(ROLL, prox=OLD, ref=[n - 0.2 for n in NEW]))
    assert report["correction"] == pytest.approx(1.221403 + 1 + 2, abs=1e-5)
    assert report["kl_ref"] == pytest.approx(3 * (math.exp(-0.2) - 1 + 0.2))
