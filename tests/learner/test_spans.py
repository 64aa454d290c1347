"""The blocks of a mask are its pairs, once each, and both kernels compute them alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.credit import Collapsed
from treadle.learner.pack import PackedBatch, pack
from treadle.learner.plan import NodePlan
from treadle.learner.spans import FLASH, PLAIN, Kernel, kernel_for, spans
from treadle.learner.tree import Node, require_order
from treadle.testing.random_forests import random_groups
from treadle.trajectory.forest import Forest


def random_pack(seed: int) -> PackedBatch:
    forest = Forest.of(random_groups(seed, 2))
    ones = np.where(forest.action, 1.0, 0.0)
    return pack(forest, Collapsed(pos=ones, neg=ones, mass=ones), denominator=1.0, budget_tokens=10_000)[0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 200))
def test_the_blocks_hold_every_pair_of_the_mask_once(seed: int, size: int) -> None:
    batch = random_pack(seed)
    seen = torch.zeros(batch.tokens, batch.tokens, dtype=torch.int64)
    for first in range(0, batch.tokens, size):
        covered = 0
        for span in spans(batch.nodes, first, min(first + size, batch.tokens)):
            rows = slice(span.queries.start + first, span.queries.stop + first)
            block = torch.ones(rows.stop - rows.start, span.keys.stop - span.keys.start, dtype=torch.int64)
            seen[rows, span.keys] += block.tril() if span.causal else block
            if span.causal:
                assert (rows.start, rows.stop) == (span.keys.start, span.keys.stop)
                covered += rows.stop - rows.start
        assert covered == min(first + size, batch.tokens) - first
    at = torch.arange(batch.tokens)
    assert torch.equal(seen, ((at[None] <= at[:, None]) & (at[:, None] < batch.end[None])).long())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_the_kernel_of_the_build_computes_what_the_formulas_say(causal: bool, kv_heads: int) -> None:
    torch.manual_seed(0)
    kernel: Kernel = kernel_for(torch.device("cpu"))
    assert FLASH is None or kernel is FLASH
    n, m = (9, 9) if causal else (5, 11)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_joined_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    batch = random_pack(5)
    exact = [torch.randn(1, heads, batch.tokens, 16) for heads in (4, 2, 2)]
    plan = NodePlan(batch, torch.device("cpu"))
    expected = plan.attend(0, *(x.to(dtype).float() for x in exact), 0.25)
    got = plan.attend(0, *(x.to(dtype) for x in exact), 0.25)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=2e-2, atol=2e-2)


BROKEN = {
    "a gap": [Node(0, 3, -1), Node(4, 3, 0)],
    "an empty node": [Node(0, 3, -1), Node(3, 0, 0), Node(3, 4, 0)],
    "a child apart from its parent": [Node(0, 2, -1), Node(2, 2, -1), Node(4, 3, 0)],
    "a child before its parent": [Node(0, 3, 1), Node(3, 4, -1)],
    "too few tokens": [Node(0, 3, -1), Node(3, 3, 0)],
}


@pytest.mark.parametrize("nodes", BROKEN.values(), ids=BROKEN)
def test_nodes_in_another_order_are_refused(nodes: list[Node]) -> None:
    require_order([Node(0, 3, -1), Node(3, 2, 0), Node(5, 2, 0)], [7, 7, 7, 5, 5, 7, 7], 7)
    with pytest.raises(ValueError, match="pack: "):
        require_order(nodes, [7] * 7, 7)


def test_ends_that_are_not_those_of_the_nodes_are_refused() -> None:
    batch = random_pack(2)
    end = batch.end.clone()
    end[batch.nodes[-1].start] += 1
    with pytest.raises(ValueError, match="ends"):
        NodePlan(replace(batch, end=end), torch.device("cpu"))
