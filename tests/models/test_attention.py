"""The hook: flat forwards equal transformers' own, and plans decide who sees whom."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from treadle.core.errors import ModelError
from treadle.models import CausalPlan, MaskPlan, Policy

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", {}),
    ("LlamaConfig", {"tie_word_embeddings": True}),
    ("Qwen2Config", {}),
    ("Qwen3Config", {"head_dim": 16}),
    ("MistralConfig", {"sliding_window": None}),
    ("GemmaConfig", {"head_dim": 8}),
    ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 256, "final_logit_softcapping": 2.0}),
    ("GraniteConfig", {"logits_scaling": 8.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
    ("CohereConfig", {"logit_scale": 0.25}),
    ("MixtralConfig", {"num_local_experts": 4}),
    ("GPTNeoXConfig", {}),
]


@pytest.mark.parametrize(("family", "extra"), FAMILIES, ids=[f"{name}-{len(extra)}" for name, extra in FAMILIES])
def test_hidden_and_logits_equal_the_plain_forward(
    family: str, extra: dict[str, Any], build: Callable[..., Path]
) -> None:
    folder = build(family, extra)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    policy = Policy.load(folder)
    ids = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = plain(input_ids=ids[None], use_cache=False, output_hidden_states=True)
        hidden = policy.hidden(ids, torch.arange(60), CausalPlan())
        logits = policy.logits(hidden)
    torch.testing.assert_close(hidden, expected.hidden_states[-1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, expected.logits[0], rtol=1e-5, atol=1e-5)


def test_two_branches_in_one_forward_equal_two_sequences(policy: Policy) -> None:
    ids = torch.randint(3, 259, (20,), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    mask[15:, 10:15] = False
    pos = torch.cat([torch.arange(15), torch.arange(10, 15)])
    with torch.no_grad():
        tree = policy.hidden(ids, pos, MaskPlan(mask))
        second = policy.hidden(torch.cat([ids[:10], ids[15:]]), torch.arange(15), CausalPlan())
    torch.testing.assert_close(tree[15:], second[10:], rtol=1e-5, atol=1e-6)


def test_a_plan_is_called_once_per_layer_with_the_measured_shapes(policy: Policy) -> None:
    dims = policy.dims
    seen = []

    class Spy(CausalPlan):
        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            seen.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape), scale))
            return super().attend(layer, q, k, v, scale)

    policy.hidden(torch.arange(7), torch.arange(7), Spy())
    kv = (1, dims.kv_heads, 7, dims.head_dim)
    expected = [(n, (1, dims.heads, 7, dims.head_dim), kv, kv, dims.head_dim**-0.5) for n in range(dims.layers)]
    assert seen == expected


def test_gradients_flow_through_a_plan_to_every_weight(policy: Policy) -> None:
    hidden = policy.hidden(torch.arange(3, 12), torch.arange(9), CausalPlan())
    policy.logits(hidden[2:4]).logsumexp(-1).sum().backward()
    assert [name for name, weight in policy.module.named_parameters() if weight.grad is None] == []


def test_logits_of_some_tokens_equal_those_of_all(policy: Policy) -> None:
    with torch.no_grad():
        hidden = policy.hidden(torch.arange(3, 12), torch.arange(9), CausalPlan())
        some, everything = policy.logits(hidden[[1, 4]]), policy.logits(hidden)
    torch.testing.assert_close(some, everything[[1, 4]])


def test_a_forward_without_a_plan_is_refused(policy: Policy) -> None:
    with pytest.raises(ModelError, match=r"no attention plan.*Policy\.hidden"):
        policy.module(input_ids=torch.arange(3)[None])
