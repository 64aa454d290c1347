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


def test_rows_that_are_not_finite_are_told_apart() -> None:
    logits = torch.zeros(3, 300)
    logits[1, 5] = float("nan")
    drawn = Sampler().draw(logits, uniforms=torch.full((3,), 0.5, dtype=torch.float64), temperature=torch.ones(3))
    assert drawn.finite == [True, False, True]
