"""The kernel of this build computes what the formulas say, and the formulas are autograd's."""

from __future__ import annotations

import pytest
import torch

from treadle.learner.kernels import FLASH, LEAF, PLAIN, Kernel, kernel_for


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("n", "more"), [(9, 0), (5, 6), (2 * LEAF, 3), (4 * LEAF + 3, 0), (LEAF + 1, 50)])
def test_the_kernel_of_the_build_computes_what_the_formulas_say(
    causal: bool, kv_heads: int, n: int, more: int
) -> None:
    """Blocks of all sizes: whole, in halves, with a rest."""
    torch.manual_seed(0)
    kernel: Kernel = kernel_for(torch.device("cpu"))
    assert FLASH is None or kernel is FLASH
    m = n if causal else n + more
    q, grad = (torch.randn(1, 6, n, 8, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(1, kv_heads, m, 8, dtype=torch.float64) for _ in range(2))
    expected, total = PLAIN.forward(q, k, v, causal, 0.4)
    out, lse = kernel.forward(q, k, v, causal, 0.4)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, total, rtol=1e-12, atol=1e-12)
    shares = kernel.backward(grad, q, k, v, out, lse, causal, 0.4)
    for got, wanted in zip(shares, PLAIN.backward(grad, q, k, v, expected, total, causal, 0.4), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


def test_the_formulas_are_those_of_autograd() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, heads, 7, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    grad = torch.randn_like(out)
    out.backward(grad)
    with torch.no_grad():
        got, lse = PLAIN.forward(q, k, v, True, 0.3)
        shares = PLAIN.backward(grad, q, k, v, got, lse, True, 0.3)
    torch.testing.assert_close(got, out.detach(), rtol=1e-12, atol=1e-12)
    for share, leaf in zip(shares, (q, k, v), strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(share, leaf.grad, rtol=1e-11, atol=1e-11)
