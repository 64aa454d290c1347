"""A policy's version and tensors change together, under its gate; checkpoints go out and come back exactly."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from treadle.core.errors import ModelError
from treadle.models import CausalPlan, Policy, build_tiny, require_chat_template


def test_no_forward_straddles_a_version_bump(policy: Policy) -> None:
    """Each update adds 1 to every entry of one weight; a forward that saw a mixture, or another version, is torn."""
    weight = policy.module.model.norm.weight
    ids, pos = torch.arange(3, 11), torch.arange(8)
    torn, forwards = [], []
    stop = threading.Event()

    def engine() -> None:
        with torch.inference_mode():
            while not stop.is_set():
                with policy.gate.read("engine", timeout_s=60):
                    before, low = policy.version, weight.min().item()
                    policy.hidden(ids, pos, CausalPlan())
                    after, high = policy.version, weight.max().item()
                forwards.append(after)
                if not (before == after and low == high == 1.0 + after):
                    torn.append((before, after, low, high))

    threads = [threading.Thread(target=engine) for _ in range(3)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for update in range(60):
            with policy.gate.write("learner", timeout_s=60):
                for i in range(len(weight)):
                    weight[i] += 1.0
                policy.version = update + 1
    stop.set()
    for thread in threads:
        thread.join(60)
    assert torn == []
    assert policy.version == 60
    assert len(forwards) >= 3


def test_the_version_cannot_be_set_outside_the_gate(policy: Policy) -> None:
    with pytest.raises(RuntimeError, match=r"gate\.write"):
        policy.version = 1
    with policy.gate.read("engine"), pytest.raises(RuntimeError, match=r"gate\.write"):
        policy.version = 1
    assert policy.version == 0


def test_a_loaded_policy_is_in_eval_mode_float32_and_trainable(policy: Policy) -> None:
    weights = list(policy.module.parameters())
    assert not policy.module.training
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all(weight.requires_grad for weight in weights)


def test_a_policy_can_be_held_in_another_number_format(tiny: Path) -> None:
    assert next(Policy.load(tiny, dtype="float64").module.parameters()).dtype is torch.float64
    assert next(Policy.load(tiny, dtype="bfloat16").module.parameters()).dtype is torch.bfloat16


def test_an_unknown_number_format_is_refused(tiny: Path) -> None:
    with pytest.raises(ValueError, match="got 'int3', expected one of float32"):
        Policy.load(tiny, dtype="int3")


def test_the_head_weight_is_given_only_when_the_head_is_a_plain_product(
    policy: Policy, build: Callable[..., Path]
) -> None:
    states = torch.randn(3, policy.dims.hidden, generator=torch.Generator().manual_seed(0))
    assert policy.head_weight is not None
    torch.testing.assert_close(policy.logits(states), states @ policy.head_weight.T)
    assert Policy.load(build("GraniteConfig", {"logits_scaling": 8.0})).head_weight is None
    capped = {"head_dim": 8, "sliding_window": 256, "final_logit_softcapping": 30.0}
    assert Policy.load(build("Gemma3TextConfig", capped)).head_weight is None


def test_transformers_loads_a_saved_checkpoint_unchanged(policy: Policy, tmp_path: Path) -> None:
    with policy.gate.write("test"), torch.no_grad():
        policy.module.model.norm.weight.mul_(1.5)
    policy.save(tmp_path / "out")
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 30)
    with torch.no_grad():
        expected = policy.logits(policy.hidden(ids, torch.arange(27), CausalPlan()))
        torch.testing.assert_close(plain(input_ids=ids[None]).logits[0], expected, rtol=1e-5, atol=1e-6)
    state = plain.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in policy.state().items())
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert "treadle" not in (tmp_path / "out" / "config.json").read_text()
    assert tokenizer.chat_template == require_chat_template(policy.folder)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (policy.folder / "tokenizer.json").read_bytes()


def test_saving_over_a_checkpoint_replaces_it_whole(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "out")
    (tmp_path / "out" / "left-over").touch()
    policy.save(tmp_path / "out")
    assert not (tmp_path / "out" / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_litter(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.module, "save_pretrained", full)
    with pytest.raises(ModelError, match=r"cannot save the model.*No space left"):
        policy.save(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_restoring_copies_into_the_same_tensors(policy: Policy, tmp_path: Path) -> None:
    other = Policy.load(build_tiny(tmp_path / "other", seed=9))
    other.save(tmp_path / "saved")
    before = {name: weight.data_ptr() for name, weight in policy.module.named_parameters()}
    policy.restore(tmp_path / "saved", version=12)
    assert policy.version == 12
    assert {name: weight.data_ptr() for name, weight in policy.module.named_parameters()} == before
    expected = other.module.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in policy.module.state_dict().items())
    assert all(weight.requires_grad for weight in policy.module.parameters())


def test_restoring_another_models_weights_changes_nothing(policy: Policy, tmp_path: Path) -> None:
    build_tiny(tmp_path / "wide", hidden=32)
    before = {name: tensor.clone() for name, tensor in policy.module.state_dict().items()}
    with pytest.raises(ModelError, match="belong to another model"):
        policy.restore(tmp_path / "wide", version=5)
    assert policy.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.module.state_dict().items())


def test_save_and_restore_work_inside_a_held_gate(policy: Policy, tmp_path: Path) -> None:
    with policy.gate.write("learner"):
        policy.save(tmp_path / "out")
        policy.restore(tmp_path / "out", version=3)
    assert policy.version == 3


def test_a_checkpoint_that_lacks_a_weight_is_refused(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    del weights["model.norm.weight"]
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing.*model\.norm\.weight"):
        Policy.load(tmp_path)


def test_a_damaged_checkpoint_is_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ModelError, match="transformers cannot load") as caught:
        Policy.load(tmp_path)
    assert "\n" not in str(caught.value)
