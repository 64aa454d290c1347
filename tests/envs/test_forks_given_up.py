"""Forks that are given up half-way: whatever was opened for them is closed, wherever they stood."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.errors import StoreError
from treadle.core.messages import Message, user
from treadle.core.seeds import Stream
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.cassette import Cassette
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.fork import fork
from treadle.envs.host import EnvHost, Host, HostConfig
from treadle.envs.recorded import FallbackHost, RecordingHost
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.step import Step
from treadle.envs.task import Task

TASK = Task(id="dice", prompt="roll")
SEED = Stream(3).at("ticket", 1)
open_worlds: set[int] = set()


class Slow(Env):
    """Counts itself while it is open; where the test holds it, it says so and waits: to take over a state, to close."""

    fork = Fork.COPY
    held: asyncio.Event | None = None
    """Set when those that wait may go on; None holds nobody."""
    reached: asyncio.Event
    """Set when somebody waits."""

    async def _hold(self) -> None:
        if Slow.held is not None:
            Slow.reached.set()
            await Slow.held.wait()

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        open_worlds.add(id(self))
        self.rng = ctx.rng
        return [user(task.prompt)]

    async def restore(self, snapshot: dict[str, object]) -> None:
        open_worlds.add(id(self))
        vars(self).update(snapshot)
        await self._hold()

    async def step(self, action: Action) -> Step:
        return Step(messages=(user(f"{action.text}: {self.rng.randint(0, 10**9)}"),))

    async def close(self) -> None:
        await self._hold()
        open_worlds.discard(id(self))


@pytest.fixture(autouse=True)
def _nobody_is_open() -> None:
    open_worlds.clear()
    Slow.held = None


def worlds(store: SnapshotStore) -> EnvHost:
    return EnvHost(Slow, config=HostConfig(), clock=SystemClock(), snapshots=store)


async def test_forks_that_are_cancelled_twice_are_all_closed() -> None:
    store = SnapshotStore()
    host = worlds(store)
    await host.open(TASK, SEED)
    Slow.held, Slow.reached = asyncio.Event(), asyncio.Event()
    opening = asyncio.ensure_future(fork(host, 4, make_host=lambda: worlds(store)))
    await Slow.reached.wait()
    Slow.reached.clear()
    opening.cancel()
    await Slow.reached.wait()  # they are being closed
    opening.cancel()
    Slow.held.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await host.close()
    assert open_worlds == set()
    assert store.statistics().values["snapshots_held"] == 0


async def test_a_fork_that_has_no_host_frees_its_snapshot() -> None:
    store = SnapshotStore()
    host = worlds(store)
    await host.open(TASK, SEED)

    def none() -> Host:
        raise RuntimeError("no host")

    with pytest.raises(RuntimeError, match="no host"):
        await fork(host, 2, make_host=none)
    assert store.statistics().values["snapshots_held"] == 0
    await host.close()


async def test_a_world_that_is_being_led_after_a_cassette_is_closed_when_it_is_cancelled(tmp_path: Path) -> None:
    store = SnapshotStore()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        recording = RecordingHost(worlds(store), tape)
        await recording.open(TASK, SEED, rollout="t.0.0")
        await recording.act(Action(text="a"), step_id="1")
        await recording.close()

        def make() -> FallbackHost:
            return FallbackHost(tape, lambda: worlds(store))

        host = make()
        await host.open(TASK, SEED, rollout="t.0.0")
        await host.act(Action(text="a"), step_id="1")
        (one,) = await fork(host, 1, make_host=make, rng="split", rollouts=["t.1.0"])
        Slow.held, Slow.reached = asyncio.Event(), asyncio.Event()
        leaving = asyncio.ensure_future(one.host.act(Action(text="x"), step_id="2"))
        await Slow.reached.wait()
        leaving.cancel()
        Slow.held.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await one.host.close()
        await host.close()
    assert open_worlds == set()
    assert store.statistics().values["snapshots_held"] == 0


async def test_a_snapshot_that_cannot_be_recorded_is_freed(tmp_path: Path) -> None:
    store = SnapshotStore()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        host = RecordingHost(worlds(store), tape)
        await host.open(TASK, SEED, rollout="t.0.0")
        tape.close()
        with pytest.raises(StoreError):
            await host.snapshot()
        await host.close()
    assert store.statistics().values["snapshots_held"] == 0


async def test_a_snapshot_that_waits_for_a_thread_is_given_up_without_a_trace(sandbox: BubblewrapSandbox) -> None:
    """All threads are busy: the one that would read the files never begins."""
    free, loop = threading.Event(), asyncio.get_running_loop()
    busy = ThreadPoolExecutor(1)
    loop.set_default_executor(busy)
    holding = loop.run_in_executor(None, free.wait)
    before = sorted(os.listdir("/proc/self/fd"))
    taking = asyncio.ensure_future(sandbox.snapshot())
    for _ in range(20):  # it has come to where it waits for a thread
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    free.set()
    await holding
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert (await sandbox.snapshot()).areas


async def test_a_workspace_without_room_is_forked_as_it_is(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("export A=b; head -c 100000000 /dev/zero | tr '\\0' x > flood; head -c 99999 /dev/zero > more")
    seen = await sandbox.run("stat -c '%n %s' *; echo $A")
    other = BubblewrapSandbox()
    await other.start()
    before = sorted(os.listdir("/proc/self/fd"))
    await other.restore(await sandbox.snapshot())
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert (await other.run("stat -c '%n %s' *; echo $A")).output == seen.output
    await other.close()


async def test_a_workspace_of_many_files_is_forked_as_it_is(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("mkdir many; cd many; for i in $(seq 3000); do : > $i; done", timeout_s=60)
    seen = await sandbox.run("ls | wc -l; pwd")
    other = BubblewrapSandbox()
    await other.start()
    await other.restore(await sandbox.snapshot())
    assert (await other.run("ls | wc -l; pwd")).output == seen.output
    await other.close()
