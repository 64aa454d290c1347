"""UnsafeSandbox: the same persistent shell without any sandbox around it.

Commands run as the user who trains, with that user's files, network and processes. It exists for machines where
bubblewrap cannot run and for trusted commands; nothing falls back to it by itself, it has to be asked for. The
workspace is a temporary folder, which is also HOME; there is no `/work`. Time, output and the memory of a command are
limited; the size of the workspace and the number of processes are not, and what leaves its process group escapes. A
fork has a folder of its own, and no part of the machine's /tmp.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from treadle.core.errors import SandboxError
from treadle.envs.box import STATE, Box, BoxedSandbox, Pipes
from treadle.envs.driver import SWEEP_GROUP, driver
from treadle.envs.sandbox import SandboxLimits
from treadle.envs.usage import descendants

_WRAPPER = '/bin/bash --noprofile --norc -c "$1" bash & wait'
"""Keeps `$PPID` in a command from being the trainer."""


class UnsafeSandbox(BoxedSandbox):
    """A `Sandbox` that protects nothing."""

    def __init__(self, *, limits: SandboxLimits | None = None) -> None:
        super().__init__(limits=limits)
        self._folder: Path | None = None

    @staticmethod
    def available() -> str | None:
        """None when bash is there, else one line: why not, and what to do about it."""
        return None if os.access("/bin/bash", os.X_OK) else "sandbox: /bin/bash is missing: apt-get install bash"

    @property
    def _owner(self) -> int | None:
        return None

    @property
    def _home(self) -> str:
        assert self._folder is not None, "no folder before the start"
        return str(self._folder / "work")

    async def _opened(self, old: Box | None) -> Box:
        if (reason := self.available()) is not None:
            raise SandboxError(reason)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="treadle-unsafe-"))
            (self._folder / "work").mkdir()
            (self._folder / "shell").mkdir()
        areas = [self._folder / "work", self._folder / "shell"]
        box = _spawned(self._folder, self.limits)
        await box.ready(lambda greeting: (_driver_id(greeting), areas))
        return box

    async def close(self) -> None:
        """Kill the shell and remove the workspace."""
        left = list(descendants(self._box.first)) if self._box is not None else []
        await super().close()
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended with the shell
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _spawned(folder: Path, limits: SandboxLimits) -> Box:
    """Start one driver."""
    pipes = Pipes(owner=None)
    work = str(folder / "work")
    program = "set -m; " + driver(
        control=pipes.their_control, home=work, state=str(folder / "shell" / STATE), sweep=SWEEP_GROUP, limits=None
    )
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": work, "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        process = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc", "-c", _WRAPPER, "bash", program],
            stdin=subprocess.DEVNULL,
            stdout=pipes.their_output,
            stderr=pipes.their_output,
            pass_fds=(pipes.their_control,),
            cwd=work,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        pipes.close()
        raise SandboxError(f"sandbox: cannot start bash: {error}") from error
    finally:
        pipes.started()
    return Box(process, pipes, limits=limits, bounded=False)


def _driver_id(greeting: str) -> int:
    found = re.search(r"pid (\d+)", greeting)
    if found is None:
        raise ValueError(f"the driver did not tell its process id: {greeting!r}")
    return int(found[1])
