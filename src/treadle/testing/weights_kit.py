"""`check_weights`: what every engine with a copy of the weights must hold.

It serves nothing before its first good load; each fault of `weight_faults` is a WeightMismatch; after one it serves
nothing, and a good load makes it serve again, under the version that was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from treadle.core.errors import EngineError, WeightMismatch
from treadle.core.ports import Completion, Request, Sampling, WeightRef
from treadle.core.seeds import Stream
from treadle.inference import Engine
from treadle.models.policy import Policy
from treadle.models.published import publish
from treadle.testing.weight_faults import FAULTS, Fault

T = TypeVar("T")


async def check_weights(
    engine: Engine, policy: Policy, folder: Path, *, faults: Iterable[str] = tuple(FAULTS), timeout_s: float = 120.0
) -> dict[str, str]:
    """Plant every fault; the message that each was refused with. Raises AssertionError naming what was let through.

    `engine` is running and has loaded nothing; `policy` is the publisher's, whose weights are changed; `folder` takes
    the published weights.
    """
    kit = WeightsKit(engine, policy, folder, timeout_s=timeout_s)
    await kit.refuses_to_serve("an engine that has loaded nothing")
    said: dict[str, str] = {}
    old = await kit.good()
    for name in faults:
        said[name] = await kit.catches(name, FAULTS[name], old)
        old = await kit.good()
    return said


class WeightsKit:
    """One engine and its publisher."""

    def __init__(self, engine: Engine, policy: Policy, folder: Path, *, timeout_s: float = 120.0) -> None:
        self._engine, self._policy, self._folder, self._timeout_s = engine, policy, folder, timeout_s

    async def good(self) -> WeightRef:
        """A new version that is published as it should be: it is served."""
        ref = self.publish()
        assert await self._within(self._engine.load(ref)) == ref.version, "a load gives the version that it loaded"
        done = await self._within(self._ask())
        assert done.versions == ((ref.version, len(done.ids)),), "tokens carry the version that was loaded"
        return ref

    async def catches(self, name: str, fault: Fault, old: WeightRef) -> str:
        """A new version that went wrong on its way is refused, and nothing is served after it."""
        ref = fault(old, self.publish())
        try:
            await self._within(self._engine.load(ref))
        except WeightMismatch as error:
            await self.refuses_to_serve(f"an engine after {name}")
            return str(error)
        raise AssertionError(f"{name}: weights that went wrong are a WeightMismatch; they were loaded")

    async def refuses_to_serve(self, who: str) -> None:
        """A request is an EngineError."""
        try:
            await self._within(self._ask())
        except EngineError:
            return
        raise AssertionError(f"{who} serves nothing; it answered")

    def publish(self) -> WeightRef:
        """Do to the weights what an update does, and publish the new version."""
        policy = self._policy
        with policy.gate.write("update"), torch.no_grad():
            generator = torch.Generator().manual_seed(policy.version)
            for parameter in policy.module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=0.02)
            policy.version += 1
        return publish(policy, self._folder / f"version-{policy.version:06d}")

    async def _ask(self) -> Completion:
        prompt = np.arange(5, dtype=np.int32)
        return await self._engine.generate(
            Request(prompt=prompt, sampling=Sampling(max_tokens=4), stream=Stream(1).at("weights"))
        )

    async def _within(self, what: Awaitable[T]) -> T:
        async with asyncio.timeout(self._timeout_s):
            return await what
