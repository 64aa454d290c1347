"""Checkpoints of a learner: `model/` as transformers reads it, `optimiser.safetensors`, `learner.json`.

Where adapters train, `model/` has them merged, and `adapters.safetensors` has what merging rounds away: the adapters
and the weights beside them, to the last bit. Where there is a value head, `value.safetensors` has it and its moments.

A checkpoint appears in one rename, when every byte is on the disk, so a reader never sees half of one. Moments of the
optimiser are keyed by parameter name, not by position.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from treadle.core import compute
from treadle.core.errors import ModelError, StoreError
from treadle.learner.value import ValueHead
from treadle.models.folders import atomic_folder
from treadle.models.lora import Adapters
from treadle.models.policy import Policy

FORMAT, ADAPTERS, VALUE = 1, "adapters.safetensors", "value.safetensors"


def save(
    folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, *, updates: int, beside: Mapping[str, str],
    value: ValueHead | None = None,
) -> None:
    """Write a checkpoint; one that is there already is replaced. Raises StoreError when the disk refuses.

    `beside` are the caller's own files by name, which appear with it.
    """
    facts = {"format": FORMAT, "version": policy.version, "updates": updates}
    try:
        with atomic_folder(folder, replace=True) as fresh:
            policy.save(fresh / "model")
            save_file(compute.run(lambda: _moments(policy, optimiser)), fresh / "optimiser.safetensors")
            if policy.adapters is not None:
                save_file(_exact(policy.adapters), fresh / ADAPTERS)
            if value is not None:
                save_file(compute.run(value.state), fresh / VALUE)
            for name, text in {"learner.json": json.dumps(facts, indent=2) + "\n", **beside}.items():
                (fresh / name).write_text(text, encoding="utf-8")
    except (OSError, ModelError) as error:
        raise StoreError(f"checkpoint {folder}: cannot write ({error}); free disk space or name another") from error


def restore(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, *, timeout_s: float,
            value: ValueHead | None = None) -> int:
    """Load weights, moments and version into place; returns the number of updates.

    Raises StoreError for a folder that is not a checkpoint, ModelError for weights that do not fit the policy.
    """
    try:
        facts = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
        moments = load_file(folder / "optimiser.safetensors")
        exact = load_file(folder / ADAPTERS) if (folder / ADAPTERS).exists() else {}
        valued = load_file(folder / VALUE) if value is not None else {}
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"checkpoint {folder}: cannot read ({error}); name a folder that a learner saved") from error
    if facts.get("format") != FORMAT:
        raise StoreError(f"checkpoint {folder}: got format {facts.get('format')}, expected {FORMAT}")
    held = {} if policy.adapters is None else policy.adapters.exact()
    if _shapes(exact) != _shapes(held):
        raise StoreError(
            f"checkpoint {folder}: got {_said(exact)}, expected {_said(held)}: set learner.lora_rank and "
            "learner.top_layers as they were when it was saved"
        )
    with policy.gate.write("learner.restore", timeout_s=timeout_s):
        policy.restore(folder / "model", version=int(facts["version"]))
        compute.run(lambda: _copy_all(exact, held))
        compute.run(lambda: _load_moments(policy, optimiser, moments))
        if value is not None:
            compute.run(lambda: value.load(valued))
    return int(facts["updates"])


def _exact(adapters: Adapters) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in adapters.exact().items()}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _said(tensors: Mapping[str, Tensor]) -> str:
    """What of adapters a checkpoint or a learner has, in words."""
    first = next((tensor for name, tensor in tensors.items() if name.endswith("lora_a")), None)
    return "no adapters" if first is None else f"adapters of rank {len(first)} in {len(tensors) // 3} layers"


def _copy_all(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in source.items():
            target[name].copy_(tensor)


def _moments(policy: Policy, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name, parameter in policy.module.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            out[f"{name}:{key}"] = value.detach().contiguous()
    return out


def _load_moments(policy: Policy, optimiser: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    by_name: dict[str, dict[str, Tensor]] = {}
    for label, value in moments.items():
        name, key = label.rsplit(":", 1)
        by_name.setdefault(name, {})[key] = value
    states: dict[Tensor, Any] = optimiser.state
    states.clear()
    for name, parameter in policy.module.named_parameters():
        if name in by_name:
            states[parameter] = {key: value.to(parameter.device) for key, value in by_name[name].items()}
