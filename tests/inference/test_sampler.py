"""Inverse CDF in two levels: exact, and with the right log-probs."""

from __future__ import annotations

import pytest
import torch

from treadle.inference.sampler import Sampler


def draw(logits: torch.Tensor, u: float | torch.Tensor, temperature: float = 1.0) -> list[int]:
    rows = logits.shape[0]
    uniforms = u if isinstance(u, torch.Tensor) else torch.full((rows,), u, dtype=torch.float64)
    return Sampler().draw(logits.clone(), uniforms=uniforms, temperature=torch.full((rows,), temperature)).ids


@pytest.mark.parametrize("vocab", [5, 256, 259, 1000, 49152])
def test_it_draws_what_a_plain_running_sum_draws(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(64, vocab, generator=generator) * 3
    u = torch.rand(64, generator=generator, dtype=torch.float64)
    running = logits.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(running, u[:, None], right=True)[:, 0].clamp_max(vocab - 1)
    assert draw(logits, u) == expected.tolist()


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, float("-inf")]]).repeat(40_000, 1)
    u = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
    share = torch.bincount(torch.tensor(draw(logits, u)), minlength=4) / 40_000
    assert torch.allclose(share, logits[0].softmax(-1), atol=1e-4)


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_an_id_without_probability_is_never_drawn(u: float) -> None:
    logits = torch.full((1, 700), -1e9)
    logits[0, 300] = 0.0
    assert draw(logits, u) == [300]


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    assert draw(logits, 0.99, temperature=0.0) == [1]


def test_log_prob_and_entropy_are_of_the_distribution_it_draws_from() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1)) * 4
    temperature = torch.tensor([0.0, 0.3, 1.0, 2.0, 1.0, 0.7])
    drawn = Sampler().draw(logits.clone(), uniforms=torch.full((6,), 0.4, dtype=torch.float64), temperature=temperature)
    logp = (logits.double() / torch.where(temperature == 0, 1.0, temperature)[:, None]).log_softmax(-1)
    expected = logp.gather(1, torch.tensor(drawn.ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(drawn.logprobs).double(), expected, atol=1e-5)
    assert torch.allclose(torch.tensor(drawn.entropy).double(), -(logp.exp() * logp).sum(-1), atol=1e-5)


def narrowed(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The plain way: sort, cut, normalise. float64 [V]."""
    p = logits.double().softmax(-1)
    order = p.argsort(descending=True)
    if top_k:
        p[order[top_k:]] = 0.0
        p = p / p.sum()
    before = p[order].cumsum(-1) - p[order]
    p[order[before >= top_p]] = 0.0
    return p / p.sum()


@pytest.mark.parametrize("vocab", [7, 300, 5000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (3, 1.0), (5, 0.6), (0, 0.05), (100, 0.99), (0, 0.999999)])
def test_a_narrowed_distribution_is_drawn_from_and_told_of(vocab: int, top_k: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(1, vocab, generator=generator) * 2
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    drawn = Sampler().draw(
        logits.clone(), uniforms=u, temperature=torch.ones(1), rows=torch.zeros(4000, dtype=torch.int64),
        narrowing=[(top_k, top_p)],
    )
    expected = narrowed(logits[0], top_k, top_p)
    share = torch.bincount(torch.tensor(drawn.ids), minlength=vocab) / 4000
    assert torch.allclose(share.double(), expected, atol=2 / 4000)
    assert torch.allclose(torch.tensor(drawn.logprobs).exp().double(), expected[torch.tensor(drawn.ids)], rtol=1e-4)
    entropy = -(expected * expected.clamp_min(1e-300).log()).sum()
    assert drawn.entropy[0] == pytest.approx(float(entropy), abs=1e-4)


def test_a_flat_distribution_is_narrowed_too() -> None:
    """More than a few hundred tokens hold the mass: all of them are looked at."""
    logits = torch.linspace(0, 1e-3, 4000)[None]
    drawn = Sampler().draw(
        logits.clone(), uniforms=torch.full((1,), 0.999999, dtype=torch.float64), temperature=torch.ones(1),
        narrowing=[(0, 0.5)],
    )
    assert drawn.ids == [3999]
    assert drawn.logprobs[0] == pytest.approx(float(narrowed(logits[0], 0, 0.5)[3999].log()), abs=1e-5)


def test_only_rows_that_ask_are_narrowed() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(2, 1)
    drawn = Sampler().draw(
        logits.clone(), uniforms=torch.zeros(2, dtype=torch.float64), temperature=torch.ones(2),
        narrowing=[(1, 1.0), (0, 1.0)],
    )
    assert drawn.ids == [2, 0]
    assert drawn.logprobs[0] == 0.0
    assert drawn.entropy == pytest.approx([0.0, 0.8324], abs=1e-4)


def test_rows_that_are_not_finite_are_told_apart() -> None:
    logits = torch.zeros(3, 300)
    logits[1, 5] = float("nan")
    drawn = Sampler().draw(logits, uniforms=torch.full((3,), 0.5, dtype=torch.float64), temperature=torch.ones(3))
    assert drawn.finite == [True, False, True]
