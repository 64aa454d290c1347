"""Mixed precision: factors of products are rounded, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.learner.footprint import kept_per_token
from treadle.models import CausalPlan, Policy
from treadle.models.linear import Weights, quicken

Build = Callable[..., Path]
TOKENS = 23
HALF = torch.bfloat16
ULP = 2.0**-8
"""Of a bfloat16 number, relative."""


def layer(*, bias: bool) -> tuple[nn.Linear, Weights]:
    torch.manual_seed(0)
    made = nn.Linear(48, 96, bias=bias)
    weights = quicken(made)
    weights.mix(HALF, [made])
    return made, weights


def rounded(x: Tensor) -> Tensor:
    return x.to(HALF).double()


@pytest.fixture
def mixed(build: Build) -> Policy:
    return Policy.load(build("LlamaConfig"), compute_dtype="bfloat16")


def states_of(policy: Policy) -> Tensor:
    at = torch.arange(TOKENS)
    return policy.hidden(at % 7, at, CausalPlan())


def gradients(policy: Policy) -> dict[str, Tensor]:
    policy.module.zero_grad()
    states = states_of(policy)
    states.backward(torch.randn(states.shape, generator=torch.Generator().manual_seed(1)))
    return {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (1, 130, 48), (0, 48)])
def test_a_product_is_that_of_rounded_factors_rounded_once(shape: tuple[int, ...], bias: bool, recorded: bool) -> None:
    made, _ = layer(bias=bias)
    states = torch.randn(*shape)
    with torch.set_grad_enabled(recorded):
        found = made(states)
    product = found.double() - (made.bias.double() if bias else 0)  # added in full, after rounding
    assert found.dtype == torch.float32
    torch.testing.assert_close(product, rounded(states) @ rounded(made.weight).T, rtol=ULP, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_products_of_rounded_factors_in_float32(bias: bool) -> None:
    made, _ = layer(bias=bias)
    states, slope = torch.randn(7, 48, requires_grad=True), torch.randn(7, 96)
    made(states).backward(slope)
    assert states.grad is not None and made.weight.grad is not None
    assert states.grad.dtype == made.weight.grad.dtype == torch.float32
    for found, expected in (
        (states.grad, rounded(slope) @ rounded(made.weight)), (made.weight.grad, rounded(slope).T @ rounded(states)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=ULP, atol=1e-5)
    if bias:
        torch.testing.assert_close(made.bias.grad, slope.sum(0))


def test_copies_are_made_once_for_each_change_that_is_counted_or_said() -> None:
    made, weights = layer(bias=False)
    states = torch.randn(5, 48, requires_grad=True)
    found = []
    for change in (None, None, "counted", None, "fused", None):
        if change == "counted":
            with torch.no_grad():
                made.weight.mul_(2.0)
        elif change == "fused":
            made.weight.grad = torch.ones_like(made.weight)
            torch.optim.AdamW(made.parameters(), lr=0.1, fused=True).step()
            weights.changed()
        out = made(states)
        torch.testing.assert_close(out.double(), rounded(states) @ rounded(made.weight).T, rtol=ULP, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(made(states), out, rtol=ULP, atol=1e-5)
        found.append(dict(made.forward._copies))  # type: ignore[attr-defined]
    for copy in found[0]:
        assert [a[copy] is b[copy] for a, b in pairwise(found)] == [True, False, True, False, True]


def test_the_bytes_of_all_copies_are_those_that_are_said() -> None:
    made, weights = layer(bias=False)
    states = torch.randn(5, 48, requires_grad=True)
    made(states)
    with torch.no_grad():
        made(states)
    copies = made.forward._copies  # type: ignore[attr-defined]
    assert weights.copied_bytes == len(copies) * 48 * 96 * 2
    made.weight.requires_grad_(False)
    assert weights.copied_bytes == 48 * 96 * 2


def test_without_it_a_copy_has_the_bytes_of_the_weight() -> None:
    made, weights = layer(bias=False)
    packed = bool(weights.copied_bytes - 48 * 96 * 2)
    weights.mix(HALF, [])
    assert weights.copied_bytes == packed * 48 * 96 * 4
    states = torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(made(states), states @ made.weight.T, rtol=1e-5, atol=1e-6)


def test_a_step_that_half_precision_would_round_away_moves_every_weight(mixed: Policy) -> None:
    """1e-5 is a hundredth of what a bfloat16 number near 0.5 can tell apart."""
    before = {name: p.detach().clone() for name, p in mixed.module.named_parameters()}
    gradients(mixed)
    torch.optim.AdamW(mixed.module.parameters(), lr=1e-5, weight_decay=0.0).step()
    for name, p in mixed.module.named_parameters():
        assert p.dtype == torch.float32
        if name.endswith("proj.weight"):
            assert (p.detach() != before[name]).double().mean() > 0.99, name


def test_a_fused_layer_and_the_plain_one_differ_by_rounding(mixed: Policy, build: Build) -> None:
    fused = gradients(mixed)
    for part in mixed.module.model.layers:
        part.forward = part.forward._plain
    plain, exact = gradients(mixed), gradients(Policy.load(mixed.folder))
    assert fused.keys() == plain.keys() == exact.keys()
    for name, gradient in fused.items():
        for other in (plain[name], exact[name]):
            assert (gradient - other).norm() < 0.06 * other.norm(), name
    assert any(not torch.equal(gradient, exact[name]) for name, gradient in fused.items())


def test_the_head_multiplies_in_full_precision(mixed: Policy) -> None:
    hidden = torch.randn(5, mixed.dims.hidden)
    with torch.no_grad():
        assert torch.equal(mixed.logits(hidden), Policy.load(mixed.folder).logits(hidden))


def test_gates_are_kept_in_half(mixed: Policy) -> None:
    full = Policy.load(mixed.folder)
    assert kept_per_token(full) - kept_per_token(mixed) == full.dims.layers * 2 * full.widest * 2


def test_adapters_of_rounded_products_stay_exact(mixed: Policy) -> None:
    mixed.train(None, lora_rank=2)
    assert mixed.adapters is not None
    found = gradients(mixed)
    assert found and all(gradient.dtype == torch.float32 for gradient in found.values())
    assert all("lora" in name for name in found)


def test_frozen_layers_keep_their_copies_through_a_step(mixed: Policy) -> None:
    mixed.train(1)
    low, high = (part.mlp.down_proj.forward for part in mixed.module.model.layers)

    def held() -> tuple[Any, Any]:
        with torch.no_grad():
            states_of(mixed)
        return low._copies[True], high._copies[True]

    before = held()
    with mixed.gate.write("step"):
        mixed.version += 1
    after = held()
    assert (before[0] is after[0], before[1] is after[1]) == (True, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"compute_dtype": "int8"}, "got 'int8' for weights in float32, expected None, or one of bfloat16"),
        ({"compute_dtype": "bfloat16", "dtype": "float64"}, "got 'bfloat16' for weights in float64, expected None"),
    ],
)
def test_other_formats_are_refused(tiny: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Policy.load(tiny, **given)  # type: ignore[arg-type]
