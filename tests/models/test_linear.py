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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (1, 130, 48), (2, 3, 48), (0, 48)])
def test_gradients_are_those_of_the_plain_layer(shape: tuple[int, ...], bias: bool) -> None:
    plain, quick = pair(48, 96, bias=bias)
    states = torch.randn(*shape)
    slopes = torch.randn(*shape[:-1], 96)
    found = []
    for layer in (plain, quick):
        leaf = states.clone().requires_grad_()
        out = layer(leaf)
        (out * slopes).sum().backward()
        found.append([out, leaf.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_slope_that_is_the_same_everywhere_is_read_right() -> None:
    plain, quick = pair(48, 96, bias=True)
    states = torch.randn(5, 48)
    for layer in (plain, quick):
        layer(states).sum().backward()  # one number, seen from all rows and columns
    torch.testing.assert_close(quick.weight.grad, plain.weight.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(quick.bias.grad, plain.bias.grad)


@pytest.mark.parametrize("trains", ["states", "weight"])
def test_what_does_not_train_gets_no_gradient(trains: str) -> None:
    _, quick = pair(48, 96, bias=False)
    quick.weight.requires_grad_(trains == "weight")
    states = torch.randn(5, 48, requires_grad=trains == "states")
    with torch.profiler.profile() as seen:
        quick(states).sum().backward()
    assert (states.grad is None, quick.weight.grad is None) == (trains == "weight", trains == "states")
    if FOUND is not None:
        used = {event.key: event.count for event in seen.key_averages()}
        assert used["mkldnn::_linear_pointwise"] == (2 if trains == "states" else 1)
        assert used.get("aten::mm", 0) == (1 if trains == "weight" else 0)


def test_gradients_are_of_the_weights_of_now() -> None:
    """A fused step goes uncounted: nothing that trains may read a copy of the weight."""
    _, quick = pair(48, 96, bias=False)
    states = torch.randn(5, 48, requires_grad=True)
    with torch.no_grad():
        quick(states)  # makes a copy
    quick(states).sum().backward()
    torch.optim.AdamW(quick.parameters(), lr=0.1, fused=True).step()
    states.grad = None
    out = quick(states)
    out.sum().backward()
    torch.testing.assert_close(out, states @ quick.weight.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states.grad, quick.weight.sum(0).expand(5, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_reads_a_transposed_weight_as_it_lies(dtype: torch.dtype) -> None:
    states, weight = torch.randn(7, 96, dtype=dtype), torch.randn(96, 48, dtype=dtype)
    torch.testing.assert_close(linear.multiply(states, weight.T), states @ weight, rtol=1e-5, atol=1e-5)


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
            held.append(quick.forward._copies.get(True))
    assert [a is b for a, b in pairwise(held)] == [True, False, True]


def test_a_large_module_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MOST_PACKED", 48 * 96 * 4 - 1)
    plain, quick = pair(48, 96, bias=True)
    states = torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(quick(states), plain(states), rtol=1e-5, atol=1e-6)
    assert not quick.forward._copies
