"""Ways in which published weights go wrong between a learner and an engine that copies them.

Each takes the reference of the version before and of the newest one, spoils the newest one's folder, and gives the
reference that the engine is then told to load.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from treadle.core.ports import WeightRef
from treadle.models.published import FACTS, WEIGHTS, checksum, digest

Fault = Callable[[WeightRef, WeightRef], WeightRef]


def skipped_tensor(old: WeightRef, new: WeightRef) -> WeightRef:
    """One tensor still has the values of the version before."""
    fresh, stale = _weights(new), _weights(old)
    name = next(name for name in sorted(fresh) if not fresh[name].equal(stale[name]))
    _write(new, {**fresh, name: stale[name]})
    return new


def old_version(old: WeightRef, new: WeightRef) -> WeightRef:
    """The folder holds the version before, sound in itself."""
    for name in (WEIGHTS, FACTS):
        shutil.copyfile(_folder(old) / name, _folder(new) / name)
    return new


def old_weights(old: WeightRef, new: WeightRef) -> WeightRef:
    """The facts are new, the weights those of the version before."""
    shutil.copyfile(_folder(old) / WEIGHTS, _folder(new) / WEIGHTS)
    return new


def swapped_layers(old: WeightRef, new: WeightRef) -> WeightRef:
    """Two layers went to each other's place on their way to the disk."""
    _write(new, _swapped(_weights(new)))
    return new


def swapped_before_sums(old: WeightRef, new: WeightRef) -> WeightRef:
    """Two layers went to each other's place before they were summed: every checksum agrees, the policy is another."""
    weights = _swapped(_weights(new))
    _write(new, weights)
    facts = json.loads((_folder(new) / FACTS).read_text(encoding="utf-8"))
    facts["sums"] = {name: checksum(weights[name]) for name in facts["sums"]}
    text = json.dumps(facts)
    (_folder(new) / FACTS).write_text(text, encoding="utf-8")
    return replace(new, checksum=digest(text.encode()))


def half_written(old: WeightRef, new: WeightRef) -> WeightRef:
    """The file ends in the middle."""
    data = (_folder(new) / WEIGHTS).read_bytes()
    (_folder(new) / WEIGHTS).write_bytes(data[: len(data) // 2])
    return new


def lost_tail(old: WeightRef, new: WeightRef) -> WeightRef:
    """The file has its length, but its second half never reached the disk."""
    data = (_folder(new) / WEIGHTS).read_bytes()
    (_folder(new) / WEIGHTS).write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    return new


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault for fault in (
        skipped_tensor, old_version, old_weights, swapped_layers, swapped_before_sums, half_written, lost_tail,
    )
}
"""Name to fault."""


def _folder(ref: WeightRef) -> Path:
    assert ref.path is not None
    return Path(ref.path)


def _weights(ref: WeightRef) -> dict[str, Tensor]:
    return load_file(_folder(ref) / WEIGHTS)


def _write(ref: WeightRef, weights: dict[str, Tensor]) -> None:
    save_file(weights, _folder(ref) / WEIGHTS)


def _swapped(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first two layers exchanged: names that differ in their layer's number only."""
    def other(name: str) -> str:
        return re.sub(r"\blayers\.([01])\.", lambda found: f"layers.{1 - int(found[1])}.", name)

    return {name: weights[other(name)].clone() for name in weights}
