"""Published weights: one policy version in a folder, for engines that keep a copy of their own.

    version-000007/weights.safetensors     every tensor once, tied ones under their first name, adapters merged
    version-000007/published.json          version, size, a checksum per tensor, the canary

Checksums are taken from the tensors that were trained, not from the file, and a reader compares them with what it holds
after loading: whatever happened on the way, through file, page cache or loader, shows at the first tensor that differs.
The reference that travels beside the folder carries the version and a checksum over `published.json`, so the folder of
another version, or of another run, is not taken for this one. The folder appears in one rename when all is on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from treadle.core import compute
from treadle.core.errors import StoreError, WeightMismatch
from treadle.core.ports import WeightRef
from treadle.models.canary import Canary, listen
from treadle.models.folders import atomic_folder
from treadle.models.policy import Policy

WEIGHTS, FACTS, FORMAT = "weights.safetensors", "published.json", 1
DIGEST = 8
"""Bytes of a checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the publisher says of its weights."""

    folder: Path
    version: int
    sums: Mapping[str, str]
    """Checksum of each tensor by name, as the publisher held it."""
    canary: Canary

    def check(self, found: Mapping[str, str], *, who: str) -> None:
        """Compare with the checksums of a copy. Raises WeightMismatch naming the first tensor that differs."""
        wrong = [name for name in (*self.sums, *found) if self.sums.get(name) != found.get(name)]
        if wrong:
            name = wrong[0]
            raise WeightMismatch(
                f"weights of policy version {self.version}: tensor {name} has checksum {found.get(name, 'none')} in "
                f"{who}, {self.sums.get(name, 'none')} was published ({len(set(wrong))} of {len(self.sums)} tensors "
                "differ)"
            )


def publish(policy: Policy, folder: Path) -> WeightRef:
    """Write this policy's weights of now to `folder`, which appears whole. Raises StoreError when the disk refuses."""
    with nullcontext() if policy.gate.held else policy.gate.read("publish"):
        version, held = policy.version, tensors(policy)
        facts = {
            "format": FORMAT, "version": version, "size": 0, "sums": {n: checksum(t) for n, t in held.items()},
            "canary": compute.run(lambda: listen(policy)).flat(),
        }
        try:
            with atomic_folder(folder, replace=True) as fresh:
                save_file({name: t.detach().contiguous() for name, t in held.items()}, fresh / WEIGHTS)
                facts["size"] = (fresh / WEIGHTS).stat().st_size
                text = json.dumps(facts)
                (fresh / FACTS).write_text(text, encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"weights {folder}: cannot be written ({reason}); free some disk space") from error
    return WeightRef(version=version, path=str(folder), checksum=digest(text.encode()))


def read(ref: WeightRef) -> Published:
    """What lies at `ref`. Raises WeightMismatch when it is not what was published, or not all of it."""
    if ref.path is None:
        raise ValueError("weights: got no path, expected one: this engine keeps a copy of its own")
    folder = Path(ref.path)
    try:
        text = (folder / FACTS).read_bytes()
        size = (folder / WEIGHTS).stat().st_size
        facts = json.loads(text)
        found = Published(
            folder=folder, version=int(facts["version"]), sums=dict(facts["sums"]), canary=Canary.of(facts["canary"])
        )
        expected = int(facts["size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightMismatch(f"weights {folder}: cannot be read ({type(error).__name__}: {error})") from error
    if found.version != ref.version:
        raise WeightMismatch(f"weights {folder}: policy version {found.version} is there, {ref.version} was published")
    if digest(text) != ref.checksum:
        raise WeightMismatch(
            f"weights {folder}: {FACTS} has checksum {digest(text)}, {ref.checksum} was published as version "
            f"{ref.version}"
        )
    if size != expected:
        raise WeightMismatch(
            f"weights of policy version {ref.version}: {WEIGHTS} has {size} bytes, {expected} were published; it was "
            "half written"
        )
    return found


def take(policy: Policy, folder: Path, version: int) -> None:
    """Copy published tensors into this policy's own, one at a time, and set its version, all under its gate.

    Raises WeightMismatch when a tensor is missing, unknown, of another shape or cannot be read; what was copied before
    stays, so the copy must not be used until a whole one went well.
    """
    held = tensors(policy)
    with policy.gate.write("load of published weights"):
        try:
            with safe_open(folder / WEIGHTS, framework="pt") as file:
                names = set(file.keys())
                if names != held.keys():
                    odd = sorted(names ^ held.keys())
                    raise WeightMismatch(
                        f"weights of policy version {version}: {len(names)} tensors were published, the engine's model "
                        f"has {len(held)}; the first that only one of them has is {odd[0]}"
                    )
                compute.run(lambda: _copy_all(file, held))
        except (OSError, SafetensorError) as error:
            raise WeightMismatch(f"weights of policy version {version}: {folder} cannot be read ({error})") from error
        policy.version = version


def sums(policy: Policy) -> dict[str, str]:
    """Checksum of every tensor that this policy holds now, under its gate."""
    with nullcontext() if policy.gate.held else policy.gate.read("checksums"):
        return {name: checksum(tensor) for name, tensor in tensors(policy).items()}


def tensors(policy: Policy) -> dict[str, Tensor]:
    """The tensors that make up a policy, each once: a tied one stands under its first name."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for name, tensor in policy.state().items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            out[name] = tensor
    return out


def checksum(tensor: Tensor) -> str:
    """Of shape, number format and every byte."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    digest = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=DIGEST)
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _copy_all(file: Any, held: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in held.items():
            _copy(name, file.get_tensor(name), tensor)


def _copy(name: str, source: Tensor, target: Tensor) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise WeightMismatch(
            f"tensor {name}: {source.dtype} {tuple(source.shape)} was published, the engine has {target.dtype} "
            f"{tuple(target.shape)}"
        )
    target.copy_(source)


def digest(data: bytes) -> str:
    """Checksum of `published.json`, as a reference carries it."""
    return hashlib.blake2b(data, digest_size=DIGEST).hexdigest()
