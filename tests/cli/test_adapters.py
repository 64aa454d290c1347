"""`--set learner.lora_rank=4`: a run whose adapters train, from the command line to a model for transformers."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def folder_of(said):
    return Path(said.out.splitlines()[-1].partition("run folder: ")[2])


def test_a_run_with_adapters_is_trained_evaluated_and_gone_on_with(treadle, words_file):
    changes = ("--set", "learner.lora_rank=4", "--set", "learner.lr=0.01")
    said = treadle("train", words_file, *changes, "--view", "lines")
    assert said.code == 0, said.err
    run = folder_of(said)
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    exact = load_file(checkpoint / "adapters.safetensors")
    assert {name.rpartition(".")[2] for name in exact} == {"lora_a", "lora_b", "weight"}
    assert any(bool(tensor.any()) for name, tensor in exact.items() if name.endswith("lora_b"))
    model, report = AutoModelForCausalLM.from_pretrained(checkpoint / "model", output_loading_info=True)
    assert not any(report.values())
    state = model.state_dict()
    assert not [name for name in state if "lora" in name]
    assert not all(torch.equal(state[name], tensor) for name, tensor in exact.items() if name in state)
    assert treadle("eval", run, "--tasks", "2").code == 0

    on = treadle("train", "--resume", run, "--set", "pipeline.updates=3", "--view", "lines")
    assert on.code == 0, on.err
    assert sorted((run / "checkpoints").iterdir())[-1].name > checkpoint.name


def test_adapters_and_bits_contradict_each_other_in_one_line(treadle, words_file):
    said = treadle("train", words_file, "--set", "learner.lora_rank=4", "--set", "engine.deterministic=true")
    assert said.code == 2
    assert "learner.lora_rank=4 contradicts engine.deterministic=true" in said.line
