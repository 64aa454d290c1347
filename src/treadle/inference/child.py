"""The child: a `LocalEngine` in a process of its own, on a policy of its own, that does what the line says.

    python -m treadle.inference.child JOB       started by `EngineProcess`, never by hand

The main thread runs an event loop that reads frames and writes answers; the engine steps in its worker thread, weights
are read and summed in others. Each request is a task of one TaskGroup, and is cancelled by number. When the line ends,
the owner is gone or has hung up: the process ends at once, whatever it was doing. Ctrl-C is its owner's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from treadle.core.errors import one_line
from treadle.core.memory import Memory
from treadle.core.ports import WeightRef
from treadle.inference.config import EngineConfig
from treadle.inference.engine import LocalEngine
from treadle.inference.frames import Frame, Line, read_request, write_completion
from treadle.inference.port import LoadMode
from treadle.models.policy import Policy
from treadle.models.published import sums, take
from treadle.rendering.tokens import Tokens

PULSE_S = 0.25
"""How often the child says how busy it is."""
NOTHING = -1
"""Version of a copy that holds nobody's weights: KV of it is never used again."""
T = TypeVar("T")
Take = Callable[[Policy, Path, int], None]
"""Copies published weights into a policy; a test's own plants a fault."""


class Child:
    """One engine and the line to its owner."""

    def __init__(self, engine: LocalEngine, *, owner: int, tasks: asyncio.TaskGroup, take: Take) -> None:
        self.engine = engine
        self.line = Line(hear=self._hear, lost=lambda: os._exit(0))
        self._owner = owner
        """Process that started this one."""
        self._tasks: asyncio.TaskGroup = tasks
        self._take = take
        self._running: dict[int, asyncio.Task[None]] = {}
        self._weights = ThreadPoolExecutor(1, "treadle-weights")
        """What touches weights, one after the other: a load that was given up ends before the next begins."""

    def ready(self) -> None:
        """Say what there is, and from now on how busy it is."""
        self._answer("ready", 0, context=self.engine.context, kv_bytes_per_token=self.engine.kv_bytes_per_token)
        self._pulse()

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case "generate":
                self._begin(frame, self._generate(frame))
            case "load":
                self._begin(frame, self._load(frame))
            case "cancel":
                task = self._running.get(frame.values["number"])
                if task is not None:
                    task.cancel()
            case "release":
                self.engine.release(frame.values["key"])

    def _begin(self, frame: Frame, work: Coroutine[Any, Any, None]) -> None:
        number = frame.values["number"]
        task = self._tasks.create_task(self._guarded(number, work))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number))

    async def _guarded(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # the process's border: whatever it was, the owner must hear of it
            self._answer("refused", number, error=type(error).__name__, message=one_line(error))

    async def _generate(self, frame: Frame) -> None:
        done = await self.engine.generate(read_request(frame))
        values, arrays = write_completion(done)
        self._answer("completion", frame.values["number"], arrays=arrays, **values)

    async def _load(self, frame: Frame) -> None:
        """Take weights; the owner judges by the checksums of what is held then."""
        said, policy = frame.values, self.engine.policy
        if said["afresh"]:
            await self._forget(frame)
        await self._in_turn(lambda: self._take(policy, Path(said["path"]), said["version"]))
        await self.engine.load(WeightRef(version=policy.version), LoadMode(said["mode"]))
        found = await self._in_turn(lambda: sums(policy))
        self._answer("loaded", said["number"], version=policy.version, sums=found)

    async def _forget(self, frame: Frame) -> None:
        """End what runs and drop all KV: it may have been computed on weights that nobody published."""
        mine = frame.values["number"]
        for number, task in self._running.items():
            if number != mine:
                task.cancel()
        await self._in_turn(lambda: _hold_nothing(self.engine.policy))
        await self.engine.load(WeightRef(version=NOTHING), LoadMode.RECOMPUTE)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._weights, work)

    def _answer(self, kind: str, number: int, *, arrays: Any = (), **values: object) -> None:
        self.line.send(kind, {"number": number, **values, **self._state()}, arrays)

    def _pulse(self) -> None:
        if os.getppid() != self._owner:
            os._exit(0)
        self.line.send("pulse", self._state())
        asyncio.get_running_loop().call_later(PULSE_S, self._pulse)

    def _state(self) -> dict[str, Any]:
        return {"signal": asdict(self.engine.load_signal()), "statistics": self.engine.statistics().values}


def _hold_nothing(policy: Policy) -> None:
    with policy.gate.write("engine forgets"):
        policy.version = NOTHING


async def serve(job: dict[str, Any], take: Take) -> None:
    """Run until the line ends, which ends the process."""
    folder = Path(job["folder"])
    policy = Policy.load(folder, dtype=job["dtype"], compute_dtype=job["compute_dtype"])
    tokens = Tokens.load(folder) if (folder / "tokenizer.json").is_file() else None
    engine = LocalEngine(
        policy, EngineConfig(**job["config"]), decode=None if tokens is None else tokens.decode,
        memory=None if job["memory"] is None else Memory(job["memory"]),
    )
    async with asyncio.TaskGroup() as tasks, engine:
        child = Child(engine, owner=job["owner"], tasks=tasks, take=take)
        line = socket.socket(fileno=job["line"])
        await asyncio.get_running_loop().create_connection(lambda: child.line, sock=line)
        child.ready()
        await asyncio.get_running_loop().create_future()  # never set: the end of the line ends the process


def main(take: Take = take) -> None:
    """Do the job that the last argument names."""
    job = json.loads(sys.argv[-1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(job["threads"])  # before the compute thread starts, which takes it over
    asyncio.run(serve(job, take))


if __name__ == "__main__":
    main()
