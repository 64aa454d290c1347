"""`LocalEngine`: continuous batching over the learner's own tensors, seen from the event loop.

    generate() -- post --> worker thread: queue -> slots -> steps under policy.gate.read -- deliver --> future

The event loop never waits for a forward. A caller waits on its future; it is woken by the answer, by its own
cancellation (which is posted, and frees slot and KV before the next step), or by the stall deadline when the worker
finishes no step for that long. Closing ends the thread after its present step and fails what is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import TypeVar

from treadle.core.clock import SystemClock
from treadle.core.errors import DeadlineExceeded, EngineError, WeightMismatch
from treadle.core.memory import Memory
from treadle.core.ports import Clock, Completion, Request, Statistics, WeightRef
from treadle.inference.config import EngineConfig
from treadle.inference.fixed import prove
from treadle.inference.flight import Answer, Decode, prepare
from treadle.inference.port import LoadMode, LoadSignal
from treadle.inference.worker import Drain, Worker
from treadle.models import Policy

T = TypeVar("T")

CLOSE_S = 60.0
"""How long closing waits for the present step."""
LOOK_UP_S = 5.0
"""How often one who waits looks whether the engine is still there."""


class LocalEngine:
    """An `Engine` in this process that reads the policy's tensors in place. Use as `async with LocalEngine(...)`."""

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig | None = None,
        *,
        clock: Clock | None = None,
        decode: Decode | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.policy = policy
        self.config = config or EngineConfig()
        self._context = min(self.config.context, policy.dims.context)
        self._decode = decode
        """Ids to text, needed only for stop strings. Called from the worker thread."""
        self._worker = Worker(policy, self.config, clock=clock or SystemClock(), decode=decode, memory=memory)
        if memory is not None:  # an engine without requests takes no steps
            memory.helper(lambda: self._worker.post(self._worker.relieve))

    @property
    def context(self) -> int:
        """Most tokens of one sequence."""
        return self._context

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one KV entry over all layers."""
        return self._worker.arena.bytes_per_token

    async def __aenter__(self) -> LocalEngine:
        if self.config.deterministic:
            await asyncio.to_thread(prove, self.policy, self.config.rows)
        self._worker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not await asyncio.to_thread(self._worker.stop, CLOSE_S) and error is None:
            raise DeadlineExceeded(f"closing the engine waited {CLOSE_S:g} s for its present step")

    async def generate(self, request: Request) -> Completion:
        """Sample one completion. See `core.ports.Generate`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()

        def deliver(answer: Answer) -> None:
            _post(loop, lambda: _resolve(future, answer))

        flight = prepare(
            request,
            context=self._context,
            vocab=self.policy.dims.vocab,
            can_decode=self._decode is not None,
            deliver=deliver,
        )
        self._require_alive()
        self._worker.post(lambda: self._worker.submit(flight))
        try:
            return await self._await(future, f"a request of {flight.prompt_len} prompt tokens")
        # Whatever ends the wait, cancellation above all: the flight must not go on for nobody. It is raised again.
        except BaseException:
            self._worker.post(lambda: self._worker.cancel(flight))
            raise

    def release(self, cache_key: str) -> None:
        """Forget the KV kept under a rollout or trunk key."""
        self._worker.post(lambda: self._worker.cache.release(cache_key))

    async def load(self, ref: WeightRef, mode: LoadMode = LoadMode.KEEP) -> int:
        """Note that the shared tensors have a new version. Raises WeightMismatch when they are older than `ref`."""
        if ref.path is not None:
            raise ValueError(f"weights: got the path {ref.path}, expected None: the policy's tensors are shared")
        if self.policy.version < ref.version:
            raise WeightMismatch(
                f"published policy version {ref.version}, but the shared tensors are at {self.policy.version}"
            )
        self._require_alive()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        version = self.policy.version

        def done() -> None:
            _post(loop, lambda: _resolve(future, None))

        def apply() -> None:
            if mode is LoadMode.DRAIN:
                self._worker.drain(Drain(version=version, done=done))
                return
            self._worker.renew(version, recompute=mode is LoadMode.RECOMPUTE)
            done()

        self._worker.post(apply)
        await self._await(future, f"load of policy version {version}")
        return version

    def load_signal(self) -> LoadSignal:
        """How busy the engine is."""
        scheduler = self._worker.scheduler
        return LoadSignal(
            waiting=scheduler.waiting,
            running=len(scheduler.running),
            slots=self.config.slots,
            kv_tokens=self._worker.cache.held_tokens,
            kv_budget_tokens=self.config.kv_budget_tokens,
        )

    def statistics(self) -> Statistics:
        """Counters since the start, and how busy it is."""
        worker, signal = self._worker, self.load_signal()
        values = {name: float(value) for name, value in asdict(worker.counters).items()}
        values |= {
            "waiting": float(signal.waiting),
            "running": float(signal.running),
            "kv_tokens": float(signal.kv_tokens),
            "kv_budget_tokens": float(signal.kv_budget_tokens),
            "kv_copied_bytes": float(worker.arena.copied_tokens * worker.arena.bytes_per_token),
            "reused_tokens": float(worker.cache.reused_tokens),
            "evicted": float(worker.cache.evicted),
            "preempted": float(worker.scheduler.preempted),
        }
        return Statistics(values=values)

    async def _await(self, future: asyncio.Future[T], what: str) -> T:
        steps, since = self._worker.counters.steps, time.monotonic()
        while True:
            done, _ = await asyncio.wait({future}, timeout=min(self.config.stall_s, LOOK_UP_S))
            if done:
                return future.result()
            if not self._worker.alive:
                raise EngineError(f"{what}: {self._worker.died or 'the engine is closed'}")
            if self._worker.counters.steps != steps:
                steps, since = self._worker.counters.steps, time.monotonic()
            elif time.monotonic() - since >= self.config.stall_s:
                holders = ", ".join(self.policy.gate.holders()) or "nobody"
                raise EngineError(
                    f"{what}: the engine finished no step in {self.config.stall_s:g} s; the policy's gate is held "
                    f"by {holders}"
                )

    def _require_alive(self) -> None:
        if self._worker.died:
            raise EngineError(self._worker.died)
        if not self._worker.alive:
            raise EngineError("the engine is not running: use it inside `async with engine:`")


def _resolve(future: asyncio.Future[T], answer: T | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run `call` on the caller's loop; a loop that is closed has nobody left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
