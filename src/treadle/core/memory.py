"""Memory: one budget of resident bytes for a process, and who gives way when it runs short.

What a run will hold is planned before it starts. This is for what no plan foresees: engine and learner ask for the
`excess` before each step and each pack, the bytes that the process holds beyond `NEAR` of its budget. Whoever finds
some gives way, an engine by evicting what is idle, a learner by cutting its packs, and says so through `tell`. A
learner that finds some also calls on the others, because an engine that is idle takes no step and would not notice.

Resident memory comes from /proc and takes microseconds to read. Where there is none it counts as 0: then only the plan
holds. Memory that is free but kept by the allocator is no excess: it is asked to give that back first. Used by several
threads; nothing here waits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping

from treadle.core.events import Value

NEAR = 0.9
"""Share of the budget that plans fill and beyond which memory is short."""
TRIM_S = 1.0
"""The allocator is asked at most this often to give back what it keeps."""
LINUX = sys.platform == "linux"
GB = 1e9


class Memory:
    """The budget of this process."""

    def __init__(self, budget: int, *, resident: Callable[[], int] | None = None) -> None:
        self.budget = budget
        """Bytes."""
        self.tell: Callable[[Mapping[str, Value]], object] = lambda facts: None
        """Hears what was done about it, in the thread that did it; the owner sets it."""
        self._resident = resident or resident_bytes
        self._others: list[Callable[[], object]] = []
        self._trimmed = -TRIM_S

    def excess(self) -> int:
        """Bytes held beyond what is near the budget; 0 while there are none."""
        most = int(NEAR * self.budget)
        over = self._resident() - most
        if over > 0 and time.monotonic() - self._trimmed >= TRIM_S:
            self._trimmed = time.monotonic()
            trim_heap()
            over = self._resident() - most
        return max(over, 0)

    def helper(self, call: Callable[[], object]) -> None:
        """Have `call` called whenever somebody calls on the others. It must return at once."""
        self._others.append(call)

    def call_helpers(self) -> None:
        """Ask the others to give way."""
        for call in self._others:
            call()

    def acted(self, who: str, **facts: Value) -> None:
        """Tell what `who` did."""
        held = {"resident_gb": self._resident() / GB, "budget_gb": self.budget / GB}
        self.tell({"who": who, **held, **facts})


def resident_bytes() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def trim_heap() -> None:
    """Have the allocator give free memory back to the system, where it can be asked."""
    if LINUX and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        ctypes.CDLL(None).malloc_trim(0)


def drop_pages(address: int, size: int) -> int:
    """Give whole pages within this private memory back to the system: they read as zeros from now on. Their bytes."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if not LINUX or stop <= start:
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    done = advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(mmap.MADV_DONTNEED))
    return stop - start if done == 0 else 0
