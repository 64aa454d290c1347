"""Checkpoints of a learner: `model/` as transformers reads it, `optimiser.safetensors`, `learner.json`.

A checkpoint is written into a folder beside its place and moved there when it is whole, so a reader never sees half of
one. Optimiser moments are keyed by parameter name, not by position.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from treadle.core.errors import StoreError
from treadle.models.policy import Policy

FORMAT = 1


def save(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer, *, updates: int) -> None:
    """Write a checkpoint; one that is there already is replaced. Raises StoreError when the disk refuses."""
    fresh = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        policy.save(fresh / "model")
        save_file(_moments(policy, optimiser), fresh / "optimiser.safetensors")
        facts = {"format": FORMAT, "version": policy.version, "updates": updates}
        (fresh / "learner.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for part in (fresh / "optimiser.safetensors", fresh / "learner.json", fresh):
            _flush(part)
        _replace(fresh, folder)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
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
        _load_moments(policy, optimiser, moments)
    return int(facts["updates"])


def _moments(policy: Policy, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name, parameter in policy.module.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            out[f"{name}:{key}"] = value.detach().clone().contiguous()
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


def _flush(path: Path) -> None:
    """Have the operating system write a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(fresh: Path, folder: Path) -> None:
    """Put `fresh` where `folder` is."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
