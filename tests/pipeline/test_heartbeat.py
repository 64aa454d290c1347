"""A loop that stands still is named: at once by the thread, afterwards by an event."""

import asyncio
import threading

import pytest

from treadle.pipeline import heartbeat as room
from treadle.pipeline.heartbeat import heartbeat


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(room, "EVERY_S", 0.001)


def block_until(said: threading.Event) -> None:
    assert said.wait(20)


async def test_the_line_that_blocks_the_loop_is_named_at_once_and_told_afterwards():
    said, told = threading.Event(), asyncio.Event()
    lines = []

    def say(line):
        lines.append(line)
        said.set()

    def tell(line):
        lines.append(line)
        told.set()

    with heartbeat(say=say, tell=tell, patience_s=0.05):
        block_until(said)
        await asyncio.wait_for(told.wait(), 20)
    assert "stands still for 0.05 s in block_until, " in lines[0]
    assert f"{__file__}:" in lines[0]
    assert "stood still for" in lines[1]


async def test_a_loop_that_turns_is_never_named_and_the_thread_ends():
    lines, before = [], threading.active_count()
    with heartbeat(say=lines.append, tell=lines.append, patience_s=20):
        for _ in range(200):
            await asyncio.sleep(0)
    assert lines == []
    assert threading.active_count() == before
