"""Checkpoints of a learner: `model/` as transformers reads it, `optimiser.safetensors`, `learner.json`.

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
from treadle.models.folders import atomic_folder
from treadle.models.policy import Policy

FORMAT = 1


def save(
    folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, *, updates: int, beside: Mapping[str, str]
) -> None:
    """Write a checkpoint; one that is there already is replaced. Raises StoreError when the disk refuses.

    `beside` are the caller's own files by name, which appear with it.
    """
    facts = {"format": FORMAT, "version": policy.version, "updates": updates}
    try:
        with atomic_folder(folder, replace=True) as fresh:
            policy.save(fresh / "model")
            save_file(compute.run(lambda: _moments(policy, optimiser)), fresh / "optimiser.safetensors")
            for name, text in {"learner.json": json.dumps(facts, indent=2) + "\n", **beside}.items():
                (fresh / name).write_text(text, encoding="utf-8")
    except (OSError, ModelError) as error:
        raise StoreError(f"checkpoint {folder}: cannot write ({error}); free disk space or name another") from error


def restore(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, *, timeout_s: float) -> int:
    """Load weights, moments and version into place; returns the number of updates.

    Raises StoreError for a folder that is not a checkpoint, ModelError for weights that do not fit the policy.
    """
    try:
        facts = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
        moments = load_file(folder / "optimiser.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"checkpoint {folder}: cannot read ({error}); name a folder that a learner saved") from error
    if facts.get("format") != FORMAT:
        raise StoreError(f"checkpoint {folder}: got format {facts.get('format')}, expected {FORMAT}")
    with policy.gate.write("learner.restore", timeout_s=timeout_s):
        policy.restore(folder / "model", version=int(facts["version"]))
        compute.run(lambda: _load_moments(policy, optimiser, moments))
    return int(facts["updates"])


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
