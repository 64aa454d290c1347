"""The kit for copied weights catches engines that trust what they load."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from treadle.core.errors import EngineError, WeightMismatch
from treadle.core.ports import Completion, Request, WeightRef
from treadle.inference import EngineConfig, LoadMode, LocalEngine
from treadle.models import Policy, build_tiny
from treadle.models.published import WEIGHTS, read, sums, tensors
from treadle.testing import check_weights
from treadle.testing.weight_faults import FAULTS, swapped_before_sums


class InProcess(LocalEngine):
    """Copies published weights into its own policy and checks nothing but what its subclasses add."""

    good = False

    async def generate(self, request: Request) -> Completion:
        if not self.good:
            raise EngineError("nothing is served")
        return await super().generate(request)

    async def load(self, ref: WeightRef, mode: LoadMode = LoadMode.KEEP) -> int:
        self.good = False
        assert ref.path is not None
        self.take(ref)
        self.good = True
        return await super().load(WeightRef(version=ref.version), LoadMode.RECOMPUTE)

    def take(self, ref: WeightRef) -> None:
        path = Path(ref.path or "") / WEIGHTS
        try:
            weights = load_file(path)
        except Exception as error:
            raise WeightMismatch(str(error)) from error
        with self.policy.gate.write("load"):
            for name, tensor in tensors(self.policy).items():
                tensor.data.copy_(weights[name])
            self.policy.version = ref.version


class Summing(InProcess):
    """Compares checksums, and hears no canary."""

    def take(self, ref: WeightRef) -> None:
        found = read(ref)
        super().take(ref)
        found.check(sums(self.policy), who="the engine")


class Eager(Summing):
    """Serves before it has loaded anything."""

    good = True


class Stubborn(Summing):
    """Goes on serving after a load that failed."""

    async def load(self, ref: WeightRef, mode: LoadMode = LoadMode.KEEP) -> int:
        try:
            return await super().load(ref, mode)
        finally:
            self.good = True


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (InProcess, "skipped_tensor: weights that went wrong are a WeightMismatch; they were loaded"),
        (Summing, "swapped_before_sums: weights that went wrong are a WeightMismatch; they were loaded"),
        (Eager, "an engine that has loaded nothing serves nothing; it answered"),
        (Stubborn, "an engine after skipped_tensor serves nothing; it answered"),
    ],
)
async def test_an_engine_that_lets_something_through_is_named(tmp_path: Path, kind: type[InProcess], what: str) -> None:
    folder = build_tiny(tmp_path / "model", hidden=32)
    own, publisher = Policy.load(folder), Policy.load(folder)
    config = EngineConfig(slots=4, context=96, max_batch_tokens=64, kv_budget_tokens=4096)
    with pytest.raises(AssertionError, match=what):
        async with kind(own, config) as engine:
            await check_weights(engine, publisher, tmp_path / "weights")


def test_every_fault_says_what_it_does() -> None:
    assert len(FAULTS) >= 4
    assert [name for name, fault in FAULTS.items() if not fault.__doc__] == []
    assert FAULTS["swapped_before_sums"] is swapped_before_sums
