"""`CopiedEngine`: a `LocalEngine` in a process of its own, on its own copy of the weights, that trusts no load.

    load(ref):  read what was published -> the child copies it -> checksum of every tensor that it holds then, against
                the publisher's -> canary through the child's own forward -> serve

It fails closed. Before the first good load nothing is served; when a load fails, whatever the reason, everything in
flight fails with it and nothing is served until a good one, which begins with an empty cache. While a load is judged,
requests go on in the child, but no answer leaves before the verdict: no token of weights that nobody published gets
out.

A child that ends before its time fails what is in flight. Who asks next has it started again, `Patience.restarts` times
at most, and loaded with the weights that it had, judged as ever; a load has it started again, too, and goes on.

Who waits for whom: answers for the verdict, a draining load for what is in flight, new requests for a draining load or
for a restart, which one of them does; all within the deadlines of load and start.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from treadle.core.errors import DeadlineExceeded, EngineError, one_line
from treadle.core.ports import Completion, Request, Statistics, WeightRef
from treadle.inference.canary import check_canary
from treadle.inference.config import EngineConfig
from treadle.inference.frames import read_completion, write_request
from treadle.inference.port import LoadMode, LoadSignal
from treadle.inference.process import EngineProcess, Patience
from treadle.models.published import read

COMMAND = (sys.executable, "-m", "treadle.inference.child")
"""Starts a child; the job is added as the last argument."""
NOTHING = -1
"""Version of weights that were never loaded."""
Restarted = Callable[[str, float], object]
"""Hears why the child that was replaced had ended, and how many seconds ago it was last heard."""


def unheard(why: str, seconds: float) -> None:
    """Nobody listens."""


class CopiedEngine:
    """An `Engine` with weights of its own. Use as `async with CopiedEngine(folder)`, then load what was published."""

    def __init__(
        self, folder: Path, config: EngineConfig | None = None, *, dtype: str = "float32",
        compute_dtype: str | None = None, threads: int | None = None, patience: Patience | None = None,
        command: Sequence[str] = COMMAND, memory: int | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.context = self.config.context
        """Most tokens of one sequence; the model's own limit caps it once the child has read it."""
        self.restarted: Restarted = unheard
        """Told of every child that was started in place of one that had ended; the owner sets it."""
        self._patience = patience or Patience()
        self._command = tuple(command)
        self._job = {
            "folder": str(folder), "dtype": dtype, "compute_dtype": compute_dtype, "config": asdict(self.config),
            "threads": threads or torch.get_num_threads(), "memory": memory,
        }
        self._process = EngineProcess(self._command, self._job, patience=self._patience)
        self._closed = False
        self._refusal = "it has loaded no published weights yet"
        """Why nothing is served; empty while the weights are good."""
        self._ref = WeightRef(version=NOTHING)
        """What was loaded last."""
        self._loads = asyncio.Lock()
        """Held by who changes the weights or the process."""
        self._judged, self._drained = asyncio.Event(), asyncio.Event()
        self._judged.set()
        self._drained.set()
        self._failures = 0
        self._counts = {"loads": 0.0, "loads_failed": 0.0, "load_s": 0.0, "check_s": 0.0, "restarts": 0.0}

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._process.pid

    async def __aenter__(self) -> CopiedEngine:
        try:
            ready = await self._process.start()
        except BaseException:  # a child that never was ready must not stay; raised again
            await self._process.stop()
            raise
        self.context = int(ready.values["context"])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._process.stop()

    async def generate(self, request: Request) -> Completion:
        """Sample one completion. See `core.ports.Generate`."""
        if np.ndim(request.prompt) != 1:
            raise ValueError(f"request.prompt: got shape {np.shape(request.prompt)}, expected one dimension")
        await self._wait(self._drained, "a request waited for a load that lets others end first")
        if self._may_restart and self._ref.version != NOTHING:
            await self._restore()
        self._require_good()
        failures = self._failures
        done = await self._ask(request)
        await self._wait(self._judged, "a completion waited for its weights to be judged")
        if self._failures != failures:
            raise EngineError(f"the engine serves nothing: {self._refusal or 'a load failed meanwhile'}")
        return done

    def release(self, cache_key: str) -> None:
        """Forget the KV kept under a rollout or trunk key."""
        self._process.tell("release", {"key": cache_key})

    async def load(self, ref: WeightRef, mode: LoadMode = LoadMode.KEEP) -> int:
        """Copy published weights and judge the copy; returns their version. Whatever it raises, nothing is served.

        Raises WeightMismatch with both numbers when the copy differs from what was published.
        """
        what = f"load of policy version {ref.version}"
        async with self._alone(what, self._patience.load_s):
            await self._load_alive(ref, mode, what)
        return ref.version

    def load_signal(self) -> LoadSignal:
        """How busy the engine was a moment ago."""
        said = self._process.pulse.values["signal"]
        empty = {
            "waiting": 0, "running": 0, "slots": self.config.slots, "kv_tokens": 0,
            "kv_budget_tokens": self.config.kv_budget_tokens,
        }
        return LoadSignal(**(said or empty))

    def statistics(self) -> Statistics:
        """Counters since the process was started, as it said them last, and those of loads and restarts."""
        return Statistics(values={**self._process.pulse.values["statistics"], **self._counts})

    @property
    def _may_restart(self) -> bool:
        """Whether the process has ended and may be started again."""
        left = self._counts["restarts"] < self._patience.restarts
        return bool(self._process.dead) and self._process.pid > 0 and left and not self._closed

    async def _restore(self) -> None:
        """Start the process again with the weights that it had, unless somebody else just did."""
        what = "restart of the engine's process"
        async with self._alone(what, self._patience.start_s + self._patience.load_s):
            if self._may_restart:
                await self._load_alive(self._ref, LoadMode.KEEP, what)

    async def _load_alive(self, ref: WeightRef, mode: LoadMode, what: str) -> None:
        """Load into a process that lives: one that had ended, or ends meanwhile, is started again if it may be."""
        while True:
            if self._may_restart:
                await self._restart()
            try:
                await self._load(ref, mode, what)
            except EngineError:
                if not self._may_restart:
                    raise
            else:
                return

    async def _restart(self) -> None:
        why, seconds = self._process.dead, self._process.silent_s
        self._shut(f"its process is started again: {why}")
        await self._process.stop()
        fresh = EngineProcess(self._command, self._job, patience=self._patience)
        self._counts["restarts"] += 1
        try:
            await fresh.start()
        except BaseException as error:  # nobody will use it, so it must not stay; raised again
            await fresh.stop()
            if isinstance(error, asyncio.CancelledError):  # who asked has gone: the next one may try as often
                self._counts["restarts"] -= 1
            raise
        self._process = fresh
        self.restarted(why, seconds)

    async def _load(self, ref: WeightRef, mode: LoadMode, what: str) -> None:
        began = time.monotonic()
        afresh = bool(self._refusal) or (ref.version == self._ref.version and ref.checksum != self._ref.checksum)
        if afresh:
            self._shut(self._refusal or f"other weights of version {ref.version} are loaded")
        try:
            if mode is LoadMode.DRAIN:
                await self._drain()
            published = await asyncio.to_thread(read, ref)
            self._judged.clear()
            values = {"path": ref.path, "version": ref.version, "mode": str(mode), "afresh": afresh}
            held = await self._process.ask("load", values, what=what)
            loaded = time.monotonic()
            published.check(held.values["sums"], who="the engine")
            await check_canary(self._ask, published.canary, version=ref.version, context=self.context)
        except BaseException as error:  # whatever ended it, cancellation too: it fails closed and is raised again
            self._shut(f"{what} failed: {one_line(error) or type(error).__name__}")
            self._counts["loads_failed"] += 1
            raise
        else:
            self._refusal, self._ref = "", ref
            self._counts["loads"] += 1
            self._counts |= {"load_s": loaded - began, "check_s": time.monotonic() - loaded}
        finally:
            self._judged.set()
            self._drained.set()

    async def _drain(self) -> None:
        """Let what is in flight end; nothing new starts meanwhile."""
        self._drained.clear()
        while pending := self._process.pending():
            await asyncio.wait(pending, timeout=self._patience.load_s)

    def _shut(self, why: str) -> None:
        """Serve nothing, and let nothing out that is in flight."""
        self._refusal = why
        self._failures += 1
        self._process.give_up(f"the engine serves nothing: {why}")

    async def _ask(self, request: Request) -> Completion:
        values, arrays = write_request(request)
        what = f"a request of {len(request.prompt)} prompt tokens"
        return read_completion(await self._process.ask("generate", values, arrays, what=what))

    @asynccontextmanager
    async def _alone(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Within the block nobody else changes weights or process. Raises DeadlineExceeded naming `what`."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit, self._loads:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{what}: not finished after {seconds:g} s") from None

    async def _wait(self, event: asyncio.Event, what: str) -> None:
        if event.is_set():
            return
        try:
            async with asyncio.timeout(self._patience.load_s):
                await event.wait()
        except TimeoutError:
            raise EngineError(f"{what} for {self._patience.load_s:g} s") from None

    def _require_good(self) -> None:
        if self._process.dead:
            raise EngineError(self._process.dead)
        if self._refusal:
            raise EngineError(f"the engine serves nothing: {self._refusal}")
