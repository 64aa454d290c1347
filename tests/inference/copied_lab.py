"""A publisher, engines that copy its weights, and requests for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch

from treadle.core.ports import CacheHint, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import CopiedEngine, EngineConfig
from treadle.inference.process import Patience
from treadle.learner.publisher import Publisher
from treadle.models import Policy, build_tiny

CONFIG = EngineConfig(slots=6, context=1024, max_batch_tokens=64, kv_budget_tokens=8192)


class Lab:
    def __init__(self, folder: Path) -> None:
        self.model = build_tiny(folder / "model", hidden=32, heads=4, kv_heads=2, layers=2)
        self.policy = Policy.load(self.model)
        self.publisher = Publisher(folder / "weights")

    def engine(self, *, config=CONFIG, command=None, **patience) -> CopiedEngine:
        more = {} if command is None else {"command": command}
        return CopiedEngine(self.model, config, threads=1, patience=Patience(**patience), **more)

    @asynccontextmanager
    async def loaded(self, **more):
        async with self.engine(**more) as engine:
            await self.soon(engine.load(self.publish()))
            yield engine

    def publish(self):
        return self.publisher.publish(self.policy)

    def update(self, noise=0.02):
        """A new version, published."""
        with self.policy.gate.write("update"), torch.no_grad():
            generator = torch.Generator().manual_seed(self.policy.version)
            for parameter in self.policy.module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=noise)
            self.policy.version += 1
        return self.publish()

    def ask(self, name="a", *, length=12, seed=0, cache: CacheHint | None = None, **sampling) -> Request:
        prompt = np.random.default_rng((seed, length)).integers(3, 259, length).astype(np.int32)
        return Request(
            prompt=prompt, sampling=Sampling(**{"max_tokens": 8} | sampling), stream=Stream(5).at(name), cache=cache
        )

    async def soon(self, what: Awaitable):
        return await asyncio.wait_for(what, 120)

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not ready():
                await asyncio.sleep(0.01)

    def ask_ids(self, ids) -> Request:
        return Request(prompt=np.asarray(ids, dtype=np.int32), sampling=Sampling(max_tokens=4), stream=Stream(5))

    @staticmethod
    def engine_at(folder: Path) -> CopiedEngine:
        return CopiedEngine(folder, CONFIG, threads=1)
