"""A fused layer gives the gradients of the plain one, adds them to what is there, and leaves what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.learner.footprint import kept_per_token
from treadle.models import CausalPlan, Policy
from treadle.models.embedding import _Embedding
from treadle.models.fused import _Layer
from treadle.models.linear import FOUND
from treadle.models.lora import Adapters, linear_layers

Build = Callable[..., Path]
TOKENS = 23


def ways(policy: Policy) -> list[Any]:
    """The parts of the model that take a way of their own."""
    return [part for part in policy.module.modules() if isinstance(vars(part).get("forward"), (_Layer, _Embedding))]


def plainly(policy: Policy) -> None:
    """From now on the model computes as transformers wrote it."""
    for part in ways(policy):
        part.forward = part.forward._plain


def double(policy: Policy) -> Policy:
    """In float64 throughout: the norms of transformers compute in float32, so they are replaced."""
    policy.module.double()
    for part in list(policy.module.modules()):
        for name, child in part.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(part, name, norm)
    return policy


def backward(policy: Policy) -> Tensor:
    """One forward and backward, gradients added up; the states."""
    at = torch.arange(TOKENS)
    states = policy.hidden(at % 7, at, CausalPlan())  # id 0 is the padding
    slope = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    states.backward(slope.to(states.dtype))
    return states.detach()


def gradients(policy: Policy) -> dict[str, Tensor]:
    policy.module.zero_grad()
    backward(policy)
    return {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient - expected[name]).norm() <= relative * expected[name].norm(), name


@pytest.fixture(params=["LlamaConfig", "MistralConfig"])
def loaded(request: pytest.FixtureRequest, build: Build) -> Policy:
    extra = {"sliding_window": None} if request.param == "MistralConfig" else {}
    return Policy.load(build(request.param, {**extra, "tie_word_embeddings": True}))


def test_gradients_are_those_of_the_plain_way(loaded: Policy) -> None:
    assert len(ways(loaded)) == 2 + 1
    found = gradients(loaded)
    plainly(loaded)
    assert_close(found, gradients(loaded), 1e-5)


def test_in_double_precision_they_are_the_same_to_twelve_digits(loaded: Policy) -> None:
    double(loaded)
    found, states = gradients(loaded), backward(loaded)
    plainly(loaded)
    assert_close(found, gradients(loaded), 1e-12)
    torch.testing.assert_close(states, backward(loaded), rtol=1e-12, atol=1e-13)


def test_the_padding_never_learns(loaded: Policy) -> None:
    rows = gradients(loaded)["model.embed_tokens.weight"]
    assert [bool(row.any()) for row in rows[:8]] == [False, *[True] * 6, False]


def test_gradients_are_added_to_what_is_there(loaded: Policy) -> None:
    once = gradients(loaded)
    backward(loaded)
    assert_close({n: p.grad for n, p in loaded.module.named_parameters() if p.grad is not None},
                 {name: 2 * gradient for name, gradient in once.items()}, 1e-6)


def test_the_same_tokens_give_the_same_bits(loaded: Policy) -> None:
    first, second = gradients(loaded), gradients(loaded)
    assert all(torch.equal(gradient, second[name]) for name, gradient in first.items())


@pytest.mark.parametrize("rows", [1, 3, TOKENS])
@pytest.mark.parametrize(("prepare", "relative"), [(lambda policy: policy, 1e-5), (double, 1e-12)])
def test_without_gradients_a_forward_is_the_plain_one(
    loaded: Policy, rows: int, prepare: Callable[[Policy], Policy], relative: float
) -> None:
    policy, at = prepare(loaded), torch.arange(rows)
    with torch.inference_mode():
        found = policy.hidden(at, at, CausalPlan())
        plainly(policy)
        torch.testing.assert_close(found, policy.hidden(at, at, CausalPlan()), rtol=relative, atol=relative / 10)


def test_without_gradients_a_layer_makes_four_products_and_half_the_operations(loaded: Policy) -> None:
    def counted() -> dict[str, int]:
        at = torch.arange(TOKENS)
        with torch.inference_mode():
            loaded.hidden(at, at, CausalPlan())  # makes the copies
            with torch.profiler.profile() as seen:
                loaded.hidden(at, at, CausalPlan())
        return {event.key: event.count for event in seen.key_averages() if event.key.count("::") == 1}

    few = counted()
    plainly(loaded)
    many = counted()
    if FOUND is not None:
        key = "mkldnn::_linear_pointwise"
        assert (few[key], many[key]) == (4 * loaded.dims.layers, 7 * loaded.dims.layers)
    arithmetic = ("aten::mul", "aten::add", "aten::neg", "aten::cat", "aten::pow", "aten::mean", "aten::rsqrt")
    assert 2 * sum(few.get(key, 0) for key in arithmetic) < sum(many.get(key, 0) for key in arithmetic)


def test_copies_are_those_of_the_joined_products_alone(loaded: Policy) -> None:
    """What the proof at load read is not kept beside them."""
    at = torch.arange(TOKENS)
    with torch.inference_mode():
        loaded.logits(loaded.hidden(at, at, CausalPlan()))
    linear = [part for part in loaded.module.modules() if isinstance(part, nn.Linear)]
    kept = [part for part in linear if part.forward._copies]
    assert len(kept) == (2 * loaded.dims.layers + 1) * (FOUND is not None)  # o, down; the head


@pytest.mark.parametrize("config", [{"lora_rank": 2}, {}])
def test_what_trains_otherwise_leaves_no_copies_of_before(loaded: Policy, config: dict[str, int]) -> None:
    """Adapted layers read copies of their own: those of joined products would stay beside them."""
    at = torch.arange(TOKENS)
    with torch.inference_mode():
        loaded.hidden(at, at, CausalPlan())
    joints = loaded._weights.joints
    assert [joint._copy is not None for joint in joints] == [FOUND is not None] * 2 * loaded.dims.layers
    loaded.train(None, **config)
    assert not any(joint._copy or product._copies for joint in joints for product in joint._products)
    with torch.inference_mode():
        loaded.hidden(at, at, CausalPlan())
    assert any(joint._copy for joint in joints) == (FOUND is not None and not config)


def test_a_step_is_seen_by_joined_products(loaded: Policy) -> None:
    at = torch.arange(TOKENS)
    for _ in range(2):
        with torch.inference_mode():
            found = loaded.hidden(at, at, CausalPlan())
        torch.testing.assert_close(found, loaded.hidden(at, at, CausalPlan()), rtol=1e-5, atol=1e-6)
        gradients(loaded)
        with loaded.gate.write("step"):
            torch.optim.AdamW(loaded.module.parameters(), lr=0.1, fused=True).step()
            loaded.version += 1


@pytest.mark.parametrize("top_layers", [1, 2])
def test_layers_below_those_that_train_get_no_gradients(loaded: Policy, top_layers: int) -> None:
    loaded.train(top_layers)
    found = gradients(loaded)
    plainly(loaded)
    assert_close(found, gradients(loaded), 1e-5)
    assert len(found) == 9 * top_layers + 1


def test_two_thirds_are_kept_for_the_backward(loaded: Policy) -> None:
    fused = kept_per_token(loaded)
    plainly(loaded)
    assert fused * 3 < kept_per_token(loaded) * 2


def biased(build: Build) -> Policy:
    return Policy.load(build("LlamaConfig", {"attention_bias": True}))


def other_activation(build: Build) -> Policy:
    return Policy.load(build("LlamaConfig", {"hidden_act": "gelu"}))


def half(build: Build) -> Policy:
    return Policy.load(build("LlamaConfig"), dtype="bfloat16")


def listened_to(build: Build) -> Policy:
    policy = Policy.load(build("LlamaConfig"))
    for layer in policy.module.model.layers:
        layer.mlp.register_forward_hook(lambda *_: None)
    return policy


def with_adapters(build: Build) -> Policy:
    policy = Policy.load(build("LlamaConfig"))
    policy.adapters = Adapters(linear_layers(policy.module, policy.module.model.layers), rank=2, alpha=4.0)
    return policy


@pytest.mark.parametrize("make", [biased, other_activation, half, listened_to, with_adapters])
def test_a_layer_with_more_to_it_takes_the_plain_way(build: Build, make: Callable[[Build], Policy]) -> None:
    policy = make(build)
    states = torch.zeros(1, 3, policy.dims.hidden, dtype=policy.weight_dtype)
    assert [layer.forward._parts(states) for layer in policy.module.model.layers] == [None, None]
    found = gradients(policy)
    plainly(policy)
    assert_close(found, gradients(policy), 1e-5 if policy.weight_dtype == torch.float32 else 1e-2)


def test_another_type_of_layer_stays_as_it_is(build: Build) -> None:
    policy = Policy.load(build("Qwen3Config", {"head_dim": 8}))
    assert [type(part) for part in ways(policy)] == [nn.Embedding]
