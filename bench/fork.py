"""What a fork of a live shell costs: the snapshot, and a fresh sandbox that goes on from it.

Two workspaces: a task's own, and one that is full (16 MiB). A fork is one snapshot and one resume; `per_fork_ms` shares
a snapshot among eight forks that are resumed one after the other. Snapshots count what they add to the store.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from bench.machine import machine
from treadle.core.actions import Action, CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.shell import ShellEnv, ShellTaskset
from treadle.envs.snapshots import SnapshotStore

LINE = "milliseconds and bytes of a fork of a live shell, at a task's workspace and at a full one"
FORKS = 8
FILL = {
    "small": "ls; cd /tmp; x=1",
    "full": "for i in {1..62}; do head -c 262144 /dev/urandom > part-$i; done; x=1",
}
"""Command to what the workspace is filled with; the second one leaves a last 512 KiB free."""


class LongShell(ShellEnv):
    """As many turns as a benchmark wants."""

    max_turns = 1000


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--repeats", type=int, default=15, help="forks of each kind, of which the median counts")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    figures: dict[str, dict[str, float]] = {}
    for name, command in FILL.items():
        for key, value in asyncio.run(_measured(command, args.repeats)).items():
            figures.setdefault(key, {})[name] = value
    return {**figures, "repeats": args.repeats, "forks": FORKS, **machine()}


async def _measured(command: str, repeats: int) -> dict[str, float]:
    store = SnapshotStore()
    task = ShellTaskset(1).task("train", 0)

    def make() -> EnvHost:
        return EnvHost(LongShell, config=HostConfig(), clock=SystemClock(), snapshots=store)

    seconds: dict[str, list[float]] = {}
    host, first = make(), make()
    took: Callable[[str, float], None] = lambda name, begun: seconds.setdefault(name, []).append(  # noqa: E731
        time.perf_counter() - begun
    )
    for number in range(repeats):
        fresh = make()
        begun = time.perf_counter()
        await fresh.open(task, Stream(number))
        took("open_ms", begun)
        await fresh.close()
    await host.open(task, Stream(0), rollout="bench")
    await _act(host, command)
    held = await host.snapshot()
    assert held is not None, store.statistics().values
    for number in range(repeats):
        begun = time.perf_counter()
        snapshot = await host.snapshot()
        took("snapshot_ms", begun)
        assert snapshot is not None, store.statistics().values
        fork = make()
        resuming = time.perf_counter()
        opened = await fork.resume(snapshot, rollout=f"fork-{number}")
        took("resume_ms", resuming)
        took("fork_ms", begun)
        assert opened.outcome is None, opened.outcome
        snapshot.release()
        await fork.close()
    begun = time.perf_counter()
    many = [make() for _ in range(FORKS)]
    for number, fork in enumerate(many):
        await fork.resume(held, rollout=f"many-{number}")
    per_fork = (time.perf_counter() - begun) / FORKS + statistics.median(seconds["snapshot_ms"]) / FORKS
    for fork in many:
        await fork.close()
    await first.resume(held, rollout="again")
    await _act(first, "echo more > /work/small-change")
    again = await first.snapshot()
    assert again is not None, store.statistics().values
    await first.close()
    await host.close()
    return {
        **{name: 1e3 * statistics.median(values) for name, values in seconds.items()}, "per_fork_ms": 1e3 * per_fork,
        "snapshot_bytes": held.bytes, "fork_of_fork_bytes": again.bytes,
    }


async def _act(host: EnvHost, command: str) -> None:
    action = Action(text=command, blocks=(CodeBlock(language="bash", code=command),))
    step = await host.act(action, step_id=command)
    assert step.outcome is None, step.outcome
