"""The faster product gives what the plain one gives, and only where it may be used."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from treadle.models import linear
from treadle.models.linear import FOUND, quicken


def pair(inside: int, outside: int, *, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(inside, outside, bias=bias)
    quick = copy.deepcopy(plain)
    quicken(quick)
    return plain, quick


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (1, 130, 48), (0, 48)])
def test_it_equals_the_plain_product(shape: tuple[int, ...], bias: bool) -> None:
    plain, quick = pair(48, 96, bias=bias)
    states = torch.randn(*shape)
    with torch.inference_mode():
        torch.testing.assert_close(quick(states), plain(states), rtol=1e-5, atol=1e-6)


def test_it_sees_every_change_that_is_counted() -> None:
    _, quick = pair(48, 96, bias=False)
    states = torch.randn(5, 48)
    with torch.inference_mode():
        before = quick(states)
        quick.weight.mul_(2.0)
        torch.testing.assert_close(quick(states), before * 2)


def test_columns_out_of_order_are_read_right() -> None:
    plain, quick = pair(48, 96, bias=False)
    states = torch.randn(48, 9).T
    with torch.no_grad():
        torch.testing.assert_close(quick(states), plain(states), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_plain_layer() -> None:
    plain, quick = pair(48, 96, bias=True)
    states = torch.randn(5, 48)
    for layer in (plain, quick):
        layer(states).square().sum().backward()
    assert quick.weight.grad is not None and quick.bias.grad is not None
    assert torch.equal(quick.weight.grad, plain.weight.grad)
    assert torch.equal(quick.bias.grad, plain.bias.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_formats_take_the_plain_product(dtype: torch.dtype) -> None:
    plain, quick = (layer.to(dtype) for layer in pair(16, 8, bias=False))
    states = torch.randn(3, 16, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(quick(states), plain(states))


def test_it_is_used_where_this_build_has_it() -> None:
    _, quick = pair(48, 96, bias=False)
    with torch.profiler.profile() as seen, torch.no_grad():
        quick(torch.randn(5, 48))
    used = any("_linear_pointwise" in event.key for event in seen.key_averages())
    assert used == (FOUND is not None)
    assert list(quick.state_dict()) == ["weight"]


def test_a_fused_step_is_seen_once_it_is_said() -> None:
    plain, quick = (nn.Linear(48, 96, bias=False) for _ in range(2))
    plain.load_state_dict(quick.state_dict())
    weights = quicken(quick)
    states = torch.randn(5, 48)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(quick(states), plain(states), rtol=1e-5, atol=1e-6)
        for layer in (plain, quick):
            layer.weight.grad = torch.ones_like(layer.weight)
            torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
        weights.changed()


def test_weights_are_packed_once_for_each_change() -> None:
    _, quick = pair(48, 96, bias=False)
    held = []
    with torch.no_grad():
        for change in (False, False, True, False):
            if change:
                quick.weight.add_(1.0)
            quick(torch.randn(5, 48))
            held.append(quick.forward._held)
    assert [a is b for a, b in pairwise(held)] == [True, False, True]


def test_a_large_module_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MOST_PACKED", 48 * 96 * 4 - 1)
    plain, quick = pair(48, 96, bias=True)
    states = torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(quick(states), plain(states), rtol=1e-5, atol=1e-6)
    assert quick.forward._held is None
