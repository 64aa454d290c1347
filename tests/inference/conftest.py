"""A tiny policy, engines over it, requests for them, and the plain forward that they are held against."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.core.ports import CacheHint, Completion, Ids, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import CausalPlan, Policy, build_tiny

sys.path.insert(0, str(Path(__file__).parent))  # copied_lab lies beside the tests
T = TypeVar("T")


class Pause:
    """A place where the engine's thread waits for the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._go = threading.Event()
        self.reached = asyncio.Event()

    def hold(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self._go.wait(20)

    def go(self) -> None:
        self._go.set()


class Lab:
    """Everything an engine test needs, over one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def engine(self, *, decode: Callable[..., str] | None = None, **sizes: int) -> LocalEngine:
        config = EngineConfig(**{"slots": 8, "context": 256, "max_batch_tokens": 64, "kv_budget_tokens": 8192} | sizes)
        return LocalEngine(self.policy, config, decode=decode)

    def ids(self, length: int, seed: int = 0) -> Ids:
        return np.random.default_rng((seed, length)).integers(3, 259, length).astype(np.int32)

    def ask(
        self, prompt: Ids, name: str = "a", *, cache: CacheHint | None = None, priority: int = 0, **sampling: object
    ) -> Request:
        settings = Sampling(**{"max_tokens": 8} | sampling)  # type: ignore[arg-type]
        return Request(prompt=prompt, sampling=settings, stream=Stream(5).at(name), cache=cache, priority=priority)

    async def soon(self, what: Awaitable[T]) -> T:
        return await asyncio.wait_for(what, 30)

    async def all(self, engine: LocalEngine, *requests: Request) -> list[Completion]:
        return await self.soon(asyncio.gather(*(engine.generate(r) for r in requests)))

    async def turn(self, times: int = 1) -> None:
        """Let the event loop go round, without a wait."""
        for _ in range(times):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future

    def counts(self, engine: LocalEngine, *names: str) -> tuple[int, ...]:
        values = engine.statistics().values
        return tuple(int(values[n]) for n in names)

    def after_logits(self, call: int, act: Callable[[], None]) -> None:
        """Run `act` in the engine's thread after its logits call number `call`, counted from 1."""
        plain, calls = self.policy.logits, iter(range(1, 1_000_000))

        def logits(hidden: Tensor) -> Tensor:
            out = plain(hidden)
            if next(calls) == call:
                act()
            return out

        self.policy.logits = logits  # type: ignore[method-assign]

    def pause_after(self, call: int) -> Pause:
        """Stop the engine's thread inside a step, after its logits call number `call`, until `Pause.go`."""
        pause = Pause(asyncio.get_running_loop())
        self.after_logits(call, pause.hold)
        return pause

    def new_version(self, *, noise: float = 0.0) -> None:
        """What an update does to the shared tensors, for use between two forwards."""
        self.policy._version += 1
        generator = torch.Generator().manual_seed(self.policy._version)
        with torch.inference_mode():
            for p in self.policy.module.parameters():
                p.add_(torch.randn(p.shape, generator=generator), alpha=noise)

    def log_probs(self, request: Request, completion: Completion) -> Tensor:
        """[T, V] of the completion's tokens, by one plain causal forward."""
        tokens = torch.from_numpy(np.concatenate([request.prompt, completion.ids]).astype(np.int64))
        with torch.inference_mode():
            hidden = self.policy.hidden(tokens, torch.arange(len(tokens)), CausalPlan())
            logits = self.policy.logits(hidden)[len(request.prompt) - 1 : -1]
            return (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)

    def drawn_right(self, request: Request, completion: Completion) -> bool:
        """Whether each id is the inverse CDF of the plain forward at its number, up to rounding at the edges."""
        running = self.log_probs(request, completion).double().exp().cumsum(-1).numpy()
        running = np.concatenate([np.zeros((len(running), 1)), running], 1)
        at, u = np.arange(len(running)), request.stream.uniforms(0, len(running))
        low, high = running[at, completion.ids], running[at, completion.ids + 1]
        return bool(((low - 1e-5 <= u) & (u <= high + 1e-5)).all())

    def error(self, request: Request, completion: Completion) -> float:
        """Worst difference of log-probs and entropies from the plain forward."""
        logp = self.log_probs(request, completion)
        chosen = logp.gather(1, torch.from_numpy(completion.ids.astype(np.int64))[:, None])[:, 0].numpy()
        entropy = -(logp.exp() * logp).sum(-1).numpy()
        return float(max(np.abs(chosen - completion.logprobs).max(), np.abs(entropy - completion.entropy).max()))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=48, heads=6, kv_heads=2, layers=2)


@pytest.fixture
def lab(tiny_folder: Path) -> Lab:
    return Lab(Policy.load(tiny_folder))
