"""What the ports refuse, and what a completion says about its versions."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from treadle.core.clock import SystemClock
from treadle.core.events import Event, Fanout, Listener, Silence
from treadle.core.ports import Completion, Finish, Generate, Request, Sampling

Runs = tuple[tuple[int, int], ...]


def completion(n: int, *, versions: Runs, kv_version: int = 3, logprobs: int | None = None) -> Completion:
    return Completion(
        ids=np.zeros(n, np.int32), logprobs=np.zeros(n if logprobs is None else logprobs, np.float32),
        entropy=np.zeros(n, np.float32), versions=versions, kv_version=kv_version, finish=Finish.STOP,
    )  # fmt: skip


def test_a_completion_covers_every_token_with_a_version() -> None:
    assert completion(3, versions=((3, 2), (4, 1))).oldest_version == 3


def test_the_oldest_version_counts_the_kv_blocks() -> None:
    assert completion(2, versions=((5, 2),), kv_version=1).oldest_version == 1


@pytest.mark.parametrize(
    ("versions", "logprobs"), [((), 3), (((0, 2),), 3), (((0, 4),), 3), (((0, 3),), 2)]
)
def test_a_completion_with_missing_columns_is_refused(versions: tuple[tuple[int, int], ...], logprobs: int) -> None:
    with pytest.raises(ValueError, match="as many logprobs, entropies and versions"):
        completion(3, versions=versions, logprobs=logprobs)


@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_a_temperature_below_zero_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"sampling\.temperature: got .*, expected >= 0"):
        Sampling(temperature=temperature)


def test_a_completion_of_no_tokens_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match=r"sampling\.max_tokens: got 0, expected >= 1"):
        Sampling(max_tokens=0)


def test_whatever_generates_and_releases_is_a_generate() -> None:
    class Engine:
        async def generate(self, request: Request) -> Completion:
            return completion(1, versions=((0, 1),))

        def release(self, cache_key: str) -> None:
            return None

    assert isinstance(Engine(), Generate)


def test_a_fanout_tells_every_listener_in_order() -> None:
    heard: list[tuple[int, str]] = []

    class Ear:
        def __init__(self, number: int) -> None:
            self.number = number

        def emit(self, event: Event) -> None:
            heard.append((self.number, event.name))

    listener: Listener = Fanout(Ear(0), Silence(), Ear(1))
    listener.emit(Event(name="a", at=0.0, values={}))
    listener.emit(Event(name="b", at=1.0, values={}))
    assert heard == [(0, "a"), (1, "a"), (0, "b"), (1, "b")]


async def test_the_system_clock_runs_forward() -> None:
    clock = SystemClock()
    before, wall = clock.now(), clock.wall()
    await asyncio.wait_for(clock.sleep(0), 5)
    assert clock.now() >= before
    assert clock.wall() >= wall > 1.6e9
