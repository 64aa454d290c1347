"""The blocks of a mask are its pairs, once each, and an order that is not one is refused."""

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
from treadle.learner.spans import spans
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
