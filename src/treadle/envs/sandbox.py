"""Sandbox: where untrusted code runs.

A sandbox holds one workspace, seen from inside as `/work`, and one persistent bash. `run` gives that bash one command
and waits; working directory, variables, exports and functions survive to the next command, background jobs do not.
What a command does to itself is a *result*: it fails, hangs, floods, kills its shell, fills its memory or its disk,
and `CommandResult` says so. What happens to the sandbox without a command running is an *exception* (SandboxError).

The owner seeds the workspace with `write_files` and reads it afterwards through `treadle.envs.grading` under
`workspace`, a host-side path that stays valid until `close`. Nothing inside can reach what grades it.

Between two commands a sandbox can be forked: `snapshot` takes its files and the state of its shell, `restore` puts them
into one that has just started. Processes are never part of it: none outlives its command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from treadle.envs.image import Image

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """How much one sandbox may use. Every figure is per sandbox unless it says otherwise."""

    processes: int = 64
    """Most processes and threads at a time."""
    memory_bytes: int = 512 * MIB
    """Most address space of one process, and most resident memory of all together."""
    workspace_bytes: int = 16 * MIB
    """Size of each writable area (the workspace, and /tmp)."""
    workspace_files: int = 8192
    """Most files, folders and links in each writable area."""
    file_bytes: int = 16 * MIB
    """Most bytes of one file."""
    open_files: int = 128
    """Most open descriptors of one process."""
    cpu_s: int = 60
    """Most processor seconds of one process."""
    output_bytes: int = MIB // 4
    """A command that prints more is killed at this size."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"sandbox limit {name}: got {value}, expected >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How one command ended."""

    status: int | None
    """Exit status as bash reports it (128 + n for signal n); None when it was killed on its owner's behalf."""
    output: str
    """Standard output and error in the order of writing, UTF-8 with replacement, at most `output_bytes`."""
    dropped_bytes: int = 0
    """What was printed beyond the cap and read off before the command died."""
    timed_out: bool = False
    restarted: bool = False
    """The command took its shell with it (killed, replaced by `exec`): what it changed in directory, variables and
    functions is lost, the next command runs in a fresh shell, normally with the state before it. Files stay."""
    killed: str = ""
    """Why the sandbox killed it: `time`, `output`, `memory`, `files`; empty when it did not."""
    seconds: float = 0.0


class Sandbox(Protocol):
    """One workspace and one persistent bash.

    Raises
    ------
    SandboxError    it cannot start, or was lost while no command was running
    ValueError      a seed path that is absolute, empty or climbs out
    A cancelled `run` kills the command.
    """

    @property
    def workspace(self) -> Path:
        """Host-side path of the workspace, for `treadle.envs.grading` only: never follow links below it."""
        ...

    async def start(self) -> None:
        """Make the workspace and the shell. Call once."""
        ...

    async def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        modes: Mapping[str, int] | None = None,
        mtimes: Mapping[str, float] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        """Write files into the workspace, parents made as needed, owned by the user inside.

        `folders` are made even when empty. `modes` (permission bits) and `mtimes` (seconds since the epoch) may name
        files and folders alike and are applied last.
        """
        ...

    async def run(self, command: str, *, timeout_s: float = 10.0) -> CommandResult:
        """Run one command in the persistent shell."""
        ...

    async def snapshot(self) -> Image:
        """The files and the shell's state, between two commands. Raises EnvError when there is too much of it."""
        ...

    async def restore(self, image: Image) -> None:
        """Put files and state of an image into a sandbox that has just started."""
        ...

    async def close(self) -> None:
        """Kill everything inside and free the workspace. Idempotent, bounded."""
        ...
