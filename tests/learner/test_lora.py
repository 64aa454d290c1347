"""Adapters: only they train, what is saved is the merged model, and what goes on is exact to the last bit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError, ModelError, StoreError
from treadle.core.ports import Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models import CausalPlan, Policy, build_tiny
from treadle.models.linear import FOUND
from treadle.models.published import publish, sums, take
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest

LORA = LearnerConfig(lr=1e-2, lora_rank=4, lora_alpha=8.0, max_skew=None)
LINEAR = 7
"""Linear layers of one layer of the tiny model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, heads=4, kv_heads=2, layers=3)


def packs(seed: int = 3) -> list[PackedBatch]:
    forest = Forest.of(random_groups(seed, 3, Growth(vocabulary=200, failure=0.0)))
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=60)


def logits(policy: Policy, *, gradients: bool = False) -> torch.Tensor:
    at = torch.arange(30)
    with torch.enable_grad() if gradients else torch.inference_mode():
        return policy.logits(policy.hidden(at + 5, at, CausalPlan())).detach().clone()


def tensors(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.module.state_dict().items()}


@pytest.mark.parametrize(("top_layers", "count"), [(None, 3), (1, 1)])
def test_an_update_moves_adapters_alone(folder: Path, top_layers: int | None, count: int) -> None:
    policy = Policy.load(folder)
    plain = logits(policy)
    learner = Learner(policy, LearnerConfig(lr=1e-2, lora_rank=4, top_layers=top_layers))
    torch.testing.assert_close(logits(policy), plain, rtol=1e-5, atol=1e-6)  # B is zero at first
    before, unmoved = tensors(policy), logits(policy)
    report = learner.update(packs(), PpoClip())
    learner.update(packs(), PpoClip())  # the first one has no gradient for A: B is zero
    changed = {name for name, tensor in tensors(policy).items() if not torch.equal(tensor, before[name])}
    assert report.version == 1
    assert len(changed) == 2 * LINEAR * count
    assert all(name.endswith(("lora_a", "lora_b")) for name in changed)
    assert all(f"layers.{layer}." in "".join(changed) for layer in range(3 - count, 3))
    assert float((logits(policy) - unmoved).abs().max()) > 1e-3


def test_the_quickened_product_and_the_plain_one_are_the_adapted_layer(folder: Path) -> None:
    policy = Policy.load(folder)
    learner = Learner(policy, LORA)
    for _ in range(3):
        learner.update(packs(), PpoClip())
        torch.testing.assert_close(logits(policy), logits(policy, gradients=True), rtol=1e-5, atol=1e-5)


def test_copies_of_weights_beside_adapters_stay_good(folder: Path) -> None:
    policy = Policy.load(folder)
    learner = Learner(policy, LORA)
    logits(policy)
    held = {layer: dict(product._copies) for layer, product in policy._weights.products.items()}
    assert any(held.values()) == (FOUND is not None)
    learner.update(packs(), PpoClip())
    logits(policy)
    for layer, copies in held.items():
        kept = policy._weights.products[layer]._copies
        assert all(kept[order] is copy for order, copy in copies.items())


def test_what_is_saved_is_the_merged_model_as_transformers_loads_it(folder: Path, tmp_path: Path) -> None:
    policy = Policy.load(folder)
    learner = Learner(policy, LORA)
    for _ in range(2):
        learner.update(packs(), PpoClip())
    learner.save(tmp_path / "saved")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "model", output_loading_info=True)
    assert not any(report.values())
    at = torch.arange(30)
    theirs = model(input_ids=at[None] + 5).logits[0].detach()
    torch.testing.assert_close(theirs, logits(policy), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(Policy.load(tmp_path / "saved" / "model")), theirs, rtol=1e-4, atol=1e-5)
    assert float((theirs - logits(Policy.load(folder))).abs().max()) > 1e-3
    names = load_file(tmp_path / "saved" / "adapters.safetensors")
    assert len(names) == 3 * LINEAR * 3


def test_a_learner_that_goes_on_has_the_bits_of_one_that_was_not_disturbed(folder: Path, tmp_path: Path) -> None:
    whole = Learner(Policy.load(folder), LORA)
    for seed in (1, 2):
        whole.update(packs(seed), PpoClip())
    whole.save(tmp_path / "saved")
    again = Learner(Policy.load(folder), LORA)
    again.restore(tmp_path / "saved")
    for learner in (whole, again):
        learner.update(packs(4), PpoClip())
    assert again.policy.version == whole.policy.version == 3
    mine, theirs = tensors(again.policy), tensors(whole.policy)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    assert torch.equal(logits(again.policy), logits(whole.policy))


def test_the_next_learner_gets_the_adapters_as_weights(folder: Path, tmp_path: Path) -> None:
    policy = Policy.load(folder)
    Learner(policy, LORA).update(packs(), PpoClip())
    adapted = logits(policy)
    policy.save(tmp_path / "merged")
    Learner(policy, LearnerConfig())
    assert policy.adapters is None
    assert not [name for name in tensors(policy) if "lora" in name]
    torch.testing.assert_close(logits(policy), adapted, rtol=1e-4, atol=1e-5)
    saved = tensors(Policy.load(tmp_path / "merged"))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in tensors(policy).items())


def test_a_model_that_is_restored_has_adapters_that_correct_nothing(folder: Path, tmp_path: Path) -> None:
    policy = Policy.load(folder)
    plain = logits(policy)
    policy.save(tmp_path / "plain")
    Learner(policy, LORA).update(packs(), PpoClip())
    assert float((logits(policy) - plain).abs().max()) > 1e-3
    policy.restore(tmp_path / "plain", version=0)
    torch.testing.assert_close(logits(policy), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{"lora_rank": None}, {"lora_rank": 2}, {"top_layers": 1}])
def test_a_checkpoint_of_other_adapters_is_refused_in_one_line(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    Learner(Policy.load(folder), LORA).save(tmp_path / "saved")
    with pytest.raises(StoreError, match=r"got adapters of rank 4 in 21 layers, expected .*learner\.lora_rank"):
        Learner(Policy.load(folder), replace(LORA, **changes)).restore(tmp_path / "saved")


def test_an_engine_samples_from_the_adapted_policy(folder: Path) -> None:
    policy = Policy.load(folder)
    learner = Learner(policy, LearnerConfig(lr=1e-2, lora_rank=4, top_layers=1))
    request = Request(prompt=np.arange(5, 25, dtype=np.int32), sampling=Sampling(max_tokens=6), stream=Stream(1))

    async def play() -> None:
        async with LocalEngine(policy, EngineConfig(slots=4, context=256, kv_budget_tokens=8192)) as engine:
            for version in range(3):
                done = await engine.generate(request)
                ids = torch.from_numpy(np.concatenate([request.prompt, done.ids])).long()
                with torch.inference_mode():
                    states = policy.hidden(ids, torch.arange(len(ids)), CausalPlan())
                    own = policy.logits(states[19:-1]).log_softmax(-1).gather(1, ids[20:, None])[:, 0]
                assert float((own - torch.from_numpy(done.logprobs)).abs().max()) < 1e-4
                assert done.versions[-1][0] == version
                await asyncio.to_thread(learner.update, packs(), PpoClip())

    asyncio.run(play())


def test_engines_that_copy_are_given_the_merged_weights(folder: Path, tmp_path: Path) -> None:
    policy, copy = Policy.load(folder), Policy.load(folder)
    Learner(policy, LORA).update(packs(), PpoClip())
    ref = publish(policy, tmp_path / "published")
    assert ref.path is not None
    take(copy, Path(ref.path), ref.version)
    assert sums(copy) == sums(policy)
    torch.testing.assert_close(logits(copy), logits(policy), rtol=1e-4, atol=1e-5)


def test_above_a_memo_adapters_have_the_gradients_of_a_whole_forward(folder: Path) -> None:
    found = []
    for memo_tokens in (0, 4096):
        config = replace(LORA, top_layers=1, memo_tokens=memo_tokens)
        learner = Learner(Policy.load(folder), config)
        for _ in range(2):
            report = learner.update(packs(), PpoClip())
        found.append((report.grad_norm, tensors(learner.policy)))
    memo = learner.policy.memo
    assert memo is not None
    assert memo.found > 0
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)


def test_half_precision_weights_have_exact_adapters(folder: Path) -> None:
    policy = Policy.load(folder, dtype="bfloat16")
    learner = Learner(policy, LORA)
    before = tensors(policy)
    learner.update(packs(), PpoClip())
    after = tensors(policy)
    assert {tensor.dtype for name, tensor in after.items() if "lora" in name} == {torch.float32}
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items() if "lora" not in name)
    assert {tensor.dtype for tensor in policy.state().values()} == {torch.bfloat16}


def test_ranks_that_cannot_be_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.lora_rank: got 0, expected >= 1"):
        LearnerConfig(lora_rank=0)
    with pytest.raises(ConfigError, match=r"learner\.lora_alpha: got 0, expected > 0"):
        LearnerConfig(lora_alpha=0)
    with pytest.raises(ModelError, match=r"learner\.lora_rank=17: expected at most that of .*k_proj, which is 16 x 32"):
        Learner(Policy.load(folder), LearnerConfig(lora_rank=17))
