"""The attention plans give the same numbers; which one trains is a matter of the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treadle.algorithms.credit import Collapsed
from treadle.core.errors import ConfigError
from treadle.learner.config import ATTENTION, LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.learner.plan import PLANS, NodePlan, chosen, missing, paths
from treadle.models.policy import Policy
from treadle.testing.random_forests import random_groups
from treadle.trajectory.forest import Forest

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def random_packs(seed: int, budget: int = 60) -> list[PackedBatch]:
    forest = Forest.of(random_groups(seed, 2))
    ones = np.where(forest.action, 1.0, 0.0)
    return pack(forest, Collapsed(pos=ones, neg=ones, mass=ones), denominator=1.0, budget_tokens=budget)


def states(seed: int, tokens: int, kv_heads: int, *, dtype: torch.dtype, size: int = 8) -> list[Tensor]:
    torch.manual_seed(seed % 1000)
    return [torch.randn((1, heads, tokens, size), dtype=dtype) for heads in (4, kv_heads, kv_heads)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), kv_heads=st.sampled_from([1, 2, 4]))
def test_per_node_attention_equals_the_dense_mask(seed: int, kv_heads: int):
    for batch in random_packs(seed):
        out, grads = [], []
        inputs = states(seed, batch.tokens, kv_heads, dtype=torch.float64)
        for name in ("node", "sdpa"):
            q, k, v = (x.clone().requires_grad_() for x in inputs)
            got = PLANS[name](batch, CPU).attend(0, q, k, v, 0.3)
            assert got.shape == (1, batch.tokens, 4, 8)
            got.square().sum().backward()
            out.append(got.detach())
            grads.append(torch.cat([x.grad.flatten() for x in (q, k, v) if x.grad is not None]))
        torch.testing.assert_close(out[0], out[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-11, atol=1e-11)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(5))
def test_the_forward_of_flex_attention_equals_per_node_attention(seed: int):
    """On a CPU it has no backward and is not compiled: the mask is what is compared."""
    for batch in random_packs(seed):
        q, k, v = states(seed, batch.tokens, 2, dtype=torch.float32)
        got = PLANS["flex"](batch, CPU).attend(0, q, k, v, 0.3)
        torch.testing.assert_close(got, NodePlan(batch, CPU).attend(0, q, k, v, 0.3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_sequences_of_variable_length_attention_are_nodes_below_their_paths(seed: int):
    """What one call on CUDA is given: keys of a node's path, causal from the bottom right."""
    for batch in random_packs(seed):
        q, k, v = states(seed, batch.tokens, 2, dtype=torch.float64)
        expected = NodePlan(batch, CPU).attend(0, q, k, v, 0.3)
        for node, path in zip(batch.nodes, paths(batch), strict=True):
            own = slice(node.start, node.start + node.length)
            mask = torch.ones(node.length, len(path), dtype=torch.bool).tril(len(path) - node.length)
            got = torch.nn.functional.scaled_dot_product_attention(
                q[:, :, own], k[:, :, path], v[:, :, path], attn_mask=mask, scale=0.3, enable_gqa=True
            )
            torch.testing.assert_close(got.transpose(1, 2), expected[:, own], rtol=1e-12, atol=1e-12)


def able() -> list[tuple[str, torch.device, torch.dtype]]:
    """Plans, devices and number formats that can train on this machine; CUDA's are there where a GPU is."""
    devices = [CPU, *([CUDA] if torch.cuda.is_available() else [])]
    formats = (torch.float32, torch.bfloat16)
    return [(n, d, f) for n in PLANS for d in devices for f in formats if not missing(n, d, f)]


@pytest.mark.parametrize(("name", "device", "dtype"), able(), ids=str)
def test_every_plan_that_can_train_here_has_the_gradients_of_the_dense_mask(
    name: str, device: torch.device, dtype: torch.dtype
):
    batch = max(random_packs(7, 500), key=lambda pack: pack.tokens)
    inputs = [x.to(device) for x in states(7, batch.tokens, 2, dtype=dtype, size=32)]
    results = []
    for plan, cast in ((PLANS["sdpa"], torch.float32), (PLANS[name], dtype)):
        q, k, v = (x.to(cast).requires_grad_() for x in inputs)
        out = plan(batch, device).attend(0, q, k, v, 0.2)
        out.float().square().sum().backward()
        results.append([out.detach().float(), *(x.grad.float() for x in (q, k, v) if x.grad is not None)])
    bound = 1e-4 if dtype == torch.float32 else 6e-2
    for expected, got in zip(*results, strict=True):
        assert float((got - expected).norm() / expected.norm()) < bound


def test_auto_takes_what_suits_the_device_and_the_numbers():
    assert chosen("auto", CPU, torch.bfloat16) is PLANS["node"]
    assert chosen("auto", CUDA, torch.bfloat16) is PLANS["varlen"]
    assert chosen("auto", CUDA, torch.float32) is PLANS["flex"]


@pytest.mark.parametrize(("name", "device", "dtype", "reason"), [
    ("flex", CPU, torch.float32, "needs a CUDA device"), ("varlen", CPU, torch.bfloat16, "needs a CUDA device"),
    ("varlen", CUDA, torch.float32, "needs float16 or bfloat16, the policy is in float32"),
])
def test_a_plan_that_cannot_train_here_is_refused_with_the_key(
    name: str, device: torch.device, dtype: torch.dtype, reason: str
):
    with pytest.raises(ConfigError, match=f"learner.attention: got '{name}', which {reason}"):
        chosen(name, device, dtype)


def test_a_learner_refuses_it_before_anything_runs(policy: Policy):
    with pytest.raises(ConfigError, match=r"learner\.attention"):
        Learner(policy, LearnerConfig(attention="flex"))


def test_every_configurable_plan_exists():
    assert sorted((*PLANS, "auto")) == sorted(ATTENTION)
