"""The two attention plans give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.credit import Collapsed
from treadle.learner.config import ATTENTION
from treadle.learner.pack import pack
from treadle.learner.plan import PLANS
from treadle.testing.random_forests import random_groups
from treadle.trajectory.forest import Forest


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), kv_heads=st.sampled_from([1, 2, 4]))
def test_per_node_attention_equals_the_dense_mask(seed: int, kv_heads: int):
    forest = Forest.of(random_groups(seed, 2))
    ones = np.where(forest.action, 1.0, 0.0)
    torch.manual_seed(seed % 1000)
    for batch in pack(forest, Collapsed(pos=ones, neg=ones, mass=ones), denominator=1.0, budget_tokens=60):
        out, grads = [], []
        shapes = [(1, heads, batch.tokens, 8) for heads in (4, kv_heads, kv_heads)]
        inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        for name in sorted(PLANS):
            q, k, v = (x.clone().requires_grad_() for x in inputs)
            got = PLANS[name](batch, torch.device("cpu")).attend(0, q, k, v, 0.3)
            assert got.shape == (1, batch.tokens, 4, 8)
            got.square().sum().backward()
            out.append(got.detach())
            grads.append(torch.cat([x.grad.flatten() for x in (q, k, v) if x.grad is not None]))
        torch.testing.assert_close(out[0], out[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-11, atol=1e-11)


def test_every_configurable_plan_exists():
    assert sorted(PLANS) == sorted(ATTENTION)
    with pytest.raises(KeyError):
        PLANS["flash"]
