"""Checkpoints: a policy's weights on disk, in the format that transformers loads unchanged.

A checkpoint is a whole Hugging Face folder: config, safetensors, tokenizer, chat template, and what else lay beside the
weights. It appears in one rename, after every byte is on the disk. Restoring copies values into the tensors that are
there: engine, learner and optimiser keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from treadle.core.errors import ModelError
from treadle.models.attention import NAME
from treadle.models.folders import atomic_folder, copy_beside_weights
from treadle.models.lora import Adapters
from treadle.models.quiet import quiet

loader: Any = AutoModelForCausalLM
"""transformers' loader, which is not annotated."""


def load_module(name: str, folder: Path, dtype: torch.dtype) -> Any:
    """A module in eval mode with our attention, complete with its weights.

    Raises ModelError when the folder cannot be loaded or lacks weights that the architecture needs.
    """
    try:
        with quiet():
            module, report = loader.from_pretrained(
                folder, dtype=dtype, attn_implementation=NAME, local_files_only=True, output_loading_info=True
            )
    except Exception as error:  # border to transformers: a bad folder raises anything from OSError to KeyError
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        raise ModelError(
            f"model `{name}`: transformers cannot load {folder}: {type(error).__name__}: {reason}"
        ) from error
    lacking = sorted(report["missing_keys"]) + sorted(str(key[0]) for key in report["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"model `{name}`: {len(lacking)} weights are missing from {folder} or have another shape, the first is "
            f"{lacking[0]}; copy the checkpoint again"
        )
    module.eval()
    module.requires_grad_(True)
    return module


def save_module(module: Any, state: Mapping[str, Tensor], beside: Path, target: Path) -> None:
    """Write `module` with these tensors and the files beside its weights in `beside` to `target`, atomically.

    An existing `target` is replaced. Raises ModelError when the disk refuses.
    """
    try:
        with atomic_folder(target, replace=True) as fresh, quiet():
            copy_beside_weights(beside, fresh)
            module.save_pretrained(fresh, state_dict={name: tensor.detach() for name, tensor in state.items()})
    except OSError as error:
        raise ModelError(f"cannot save the model to {target}: {error.strerror or error}") from error


def copy_weights(name: str, folder: Path, module: Any, *, beside: Adapters | None = None) -> None:
    """Copy the weights in `folder` into `module`'s own tensors, those of adapters aside. Raises ModelError when they do
    not fit.

    Nothing is changed unless everything fits. For a moment the weights are held twice.
    """
    dtype = next(module.parameters()).dtype
    fresh = load_module(name, folder, dtype)
    theirs, ours = fresh.state_dict(), module.state_dict()
    if beside is not None:
        ours = beside.without(ours)
    wrong = [key for key in ours if key not in theirs or theirs[key].shape != ours[key].shape]
    wrong += [key for key in theirs if key not in ours]
    if wrong:
        raise ModelError(
            f"model `{name}`: the weights in {folder} belong to another model ({len(wrong)} tensors do not fit, the "
            f"first is {wrong[0]})"
        )
    with torch.no_grad():
        for key, tensor in ours.items():
            tensor.copy_(theirs[key])
