"""One call for a fork: a snapshot, n fresh hosts that go on from it, and the snapshot freed.

Who plays the forks one after the other, or keeps the snapshot for later, takes the three steps apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.envs.forking import Rng
from treadle.envs.host import Host, Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """One fork of a live episode. Who takes it closes its host."""

    host: Host
    opened: Opened
    """How it began; its outcome is set when it did not."""


async def fork(
    host: Host, n: int, *, make_host: Callable[[], Host], rng: Rng = "same", rollouts: Sequence[str] = ()
) -> tuple[Forked, ...]:
    """Fork the episode of `host` n times, where it stands between two actions; it goes on itself as well.

    Empty when it cannot be forked: the caller falls back to independent rollouts. `rollouts` names the forks. Raises
    ValueError for n below 1, or another number of names than forks.
    """
    if n < 1 or len(rollouts) not in (0, n):
        raise ValueError(f"fork: got n={n} and {len(rollouts)} names, expected n >= 1 and as many names, or none")
    snapshot = await host.snapshot()
    if snapshot is None:
        return ()
    hosts = list[Host]()
    names = rollouts or [f"{snapshot.id}/{number}" for number in range(1, n + 1)]
    try:
        hosts += (make_host() for _ in range(n))
        async with asyncio.TaskGroup() as group:
            opening = [
                group.create_task(one.resume(snapshot, rollout=name, rng=rng))
                for one, name in zip(hosts, names, strict=True)
            ]
    except BaseException:  # whatever it is, cancellation too: what was made is closed before it passes on
        await asyncio.gather(*(one.close() for one in hosts))
        raise
    finally:
        snapshot.release()
    return tuple(Forked(host=one, opened=task.result()) for one, task in zip(hosts, opening, strict=True))
