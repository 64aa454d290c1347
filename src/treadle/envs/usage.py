"""What a running command uses, seen from the host, and when that is too much.

Resource limits hold single processes; this holds the sum. Memory: anonymous and shared resident bytes of all processes
below the sandbox's first one. Files: used inodes of the writable areas, which a size limit does not bound. Both are
cheap to read (a line per process, one statvfs per area), so a channel's guard can look ten times a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from treadle.envs.sandbox import SandboxLimits


class Usage:
    """Guard of one sandbox."""

    def __init__(self, *, first: int, areas: Sequence[int], limits: SandboxLimits) -> None:
        """`first` is the host's id of the sandbox's process 1, `areas` are open folders on its writable areas."""
        self._first, self._areas, self._limits = first, tuple(areas), limits
        self._files = 0

    def __call__(self) -> str:
        """`memory` or `files` when there is too much of it, else an empty string.

        Too many files only count while they grow, so that a command may clean up what an earlier one left.
        """
        files = max((used_files(area) for area in self._areas), default=0)
        grew, self._files = files > self._files, files
        if grew and files > self._limits.workspace_files:
            return "files"
        return "memory" if memory_below(self._first) > self._limits.memory_bytes else ""


def used_files(area: int) -> int:
    """Inodes in use on the file system of an open folder."""
    found = os.fstatvfs(area)
    return found.f_files - found.f_ffree


def memory_below(process: int) -> int:
    """Resident anonymous and shared bytes of all descendants of a process."""
    return sum(_resident(child) for child in descendants(process))


def descendants(process: int) -> Iterator[int]:
    """All processes below one, parents first. Those that end meanwhile are left out."""
    for child in _children(process):
        yield child
        yield from descendants(child)


def _children(process: int) -> list[int]:
    """Children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended while we looked
    return found


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/status") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(kib) << 10
