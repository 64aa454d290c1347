"""The budget of a process: what is in excess, who is called, and memory that goes back to the system."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from treadle.core.memory import NEAR, Memory, drop_pages, resident_bytes

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")


@pytest.mark.parametrize(("resident", "excess"), [(0, 0), (900, 0), (901, 1), (1500, 600)])
def test_in_excess_is_what_is_beyond_the_mark_below_the_budget(resident: int, excess: int) -> None:
    assert NEAR == 0.9
    assert Memory(1000, resident=lambda: resident).excess() == excess


def test_an_act_is_told_with_what_is_held_and_helpers_are_called() -> None:
    memory, told, called = Memory(2_000_000_000, resident=lambda: 1_000_000_000), [], []
    memory.tell = told.append
    memory.helper(lambda: called.append(1))
    memory.acted("engine", evicted=3)
    memory.call_helpers()
    assert told == [{"who": "engine", "resident_gb": 1.0, "budget_gb": 2.0, "evicted": 3}]
    assert called == [1]


@LINUX
def test_dropped_pages_leave_resident_memory_and_read_as_zeros() -> None:
    size = 64 << 20
    held = np.zeros(size, dtype=np.uint8)
    held.fill(1)
    full = resident_bytes()
    dropped = drop_pages(held.ctypes.data, size)
    assert size - 8192 <= dropped <= size
    assert full - resident_bytes() > 0.9 * size
    assert int(held[size // 2]) == 0


def test_less_than_a_page_is_not_dropped() -> None:
    held = np.ones(64, dtype=np.uint8)
    assert drop_pages(held.ctypes.data, 64) == 0
    assert bool(held.all())
