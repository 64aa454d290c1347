"""A fleet of engines that only takes time: N engines with so many slots, one queue in front of them.

A request asks for exactly `max_tokens` tokens. It waits in the queue, by priority and then by arrival, until a slot is
free; holds the slot for as long as its tokens take; and gives a completion with one id for each policy version that
sampled a part of it. New weights are taken at once by all engines, and requests in flight go on. An engine that breaks
down fails its requests and comes back after its repair. Who waits: a request for a slot. Who wakes it: the request that
gives one back, or a repair. All times are the running loop's, which should be a virtual clock's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from treadle.core.errors import EngineError
from treadle.core.ports import Clock, Completion, Finish, Request, Statistics, WeightRef
from treadle.core.seeds import Stream

if TYPE_CHECKING:  # the room's own namespace needs torch
    from treadle.inference.port import LoadSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How many engines, and what each can do. Raises ValueError naming the field."""

    engines: int = 64
    slots: int = 4
    """Requests that one engine serves at a time."""
    tokens_per_s: float = 50.0
    """Of one slot, whatever the others do."""
    breakdown_s: float | None = None
    """Mean time between two breakdowns of one engine; None never breaks."""
    repair_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("engines", "slots", "tokens_per_s", "repair_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"fleet.{name}: got {getattr(self, name)}, expected > 0")

    @property
    def tokens_per_s_all(self) -> float:
        """Of the whole fleet, every slot busy."""
        return self.engines * self.slots * self.tokens_per_s


class Fleet:
    """Satisfies `Generate` and what the pipeline needs of an engine."""

    def __init__(self, config: FleetConfig, *, clock: Clock, seed: Stream) -> None:
        self.config = config
        self.clock = clock
        self.version = 0
        self.breakdowns = 0
        self.tokens = 0.0
        """Sampled so far, those of cancelled and failed requests included."""
        self.busy_s = 0.0
        """Slot seconds that were spent so far."""
        self._seed = seed
        self._free = deque(engine for _ in range(config.slots) for engine in range(config.engines))
        self._down: set[int] = set()
        self._waiting: list[tuple[int, int, asyncio.Future[int]]] = []
        self._arrivals = 0
        self._running: dict[int, set[asyncio.Future[None]]] = {engine: set() for engine in range(config.engines)}
        self._loads: list[tuple[float, int]] = [(0.0, 0)]
        """When each version came."""
        self._kv: dict[str, int] = {}
        """Version at which a rollout began."""

    async def generate(self, request: Request) -> Completion:
        """Wait for a slot, then hold it for as long as the tokens take. Raises EngineError when its engine breaks."""
        engine = await self._slot(request.priority)
        began = self.clock.now()
        asked = request.sampling.max_tokens
        kv = self.version if request.cache is None else self._kv.setdefault(request.cache.rollout, self.version)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._running[engine].add(done)
        timer = loop.call_later(asked / self.config.tokens_per_s, _finish, done)
        try:
            await done
        finally:
            timer.cancel()
            self._running[engine].discard(done)
            spent = self.clock.now() - began
            self.busy_s += spent
            self.tokens += min(asked, spent * self.config.tokens_per_s)
            self._give_back(engine)
        return self._completion(began, kv)

    def release(self, cache_key: str) -> None:
        """Forget when a rollout began."""
        self._kv.pop(cache_key, None)

    async def load(self, ref: WeightRef, mode: object = None) -> int:
        """Tokens from now on carry this version."""
        self.version = ref.version
        self._loads.append((self.clock.now(), ref.version))
        return self.version

    def load_signal(self) -> LoadSignal:
        """Requests that wait and that run."""
        from treadle.inference.port import LoadSignal

        return LoadSignal(
            waiting=sum(not granted.done() for _, _, granted in self._waiting),
            running=sum(map(len, self._running.values())), slots=self.config.engines * self.config.slots,
            kv_tokens=0, kv_budget_tokens=0,
        )

    def statistics(self) -> Statistics:
        """Counters since the start."""
        return Statistics(values={"tokens": self.tokens, "busy_s": self.busy_s, "breakdowns": self.breakdowns})

    async def wear(self) -> None:
        """Break engines down at random and repair them, until cancelled."""
        if self.config.breakdown_s is None:
            return
        draw = self._seed.at("breakdowns").python()
        async with asyncio.TaskGroup() as repairs:
            while True:
                await self.clock.sleep(draw.expovariate(self.config.engines / self.config.breakdown_s))
                engine = draw.randrange(self.config.engines)
                if engine not in self._down:
                    repairs.create_task(self._break(engine))

    async def _break(self, engine: int) -> None:
        self.breakdowns += 1
        self._down.add(engine)
        for done in tuple(self._running[engine]):
            if not done.done():
                done.set_exception(EngineError(f"engine {engine} broke down"))
        kept = len(self._free)
        self._free = deque(other for other in self._free if other != engine)
        held = kept - len(self._free)
        await self.clock.sleep(self.config.repair_s)
        self._down.discard(engine)
        for _ in range(held):
            self._give_back(engine)

    async def _slot(self, priority: int) -> int:
        if self._free:
            return self._free.popleft()
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (priority, self._arrivals, granted))
        try:
            return await granted
        except asyncio.CancelledError:  # raised again once the slot, if it was granted just now, is passed on
            if granted.done() and not granted.cancelled():
                self._give_back(granted.result())
            raise

    def _give_back(self, engine: int) -> None:
        """Pass the slot on to who waits first. A slot of a broken engine comes back when it is repaired."""
        if engine in self._down:
            asyncio.get_running_loop().call_later(self.config.repair_s, self._give_back_repaired, engine)
            return
        self._give_back_repaired(engine)

    def _give_back_repaired(self, engine: int) -> None:
        while self._waiting:
            _, _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                granted.set_result(engine)
                return
        self._free.append(engine)

    def _completion(self, began: float, kv: int) -> Completion:
        seen: list[int] = []
        for at, version in reversed(self._loads):
            seen.insert(0, version)
            if at <= began:
                break
        n = len(seen)
        return Completion(
            ids=np.arange(n, dtype=np.int32), logprobs=np.zeros(n, np.float32), entropy=np.zeros(n, np.float32),
            versions=tuple((version, 1) for version in seen), kv_version=kv, finish=Finish.STOP,
        )


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
