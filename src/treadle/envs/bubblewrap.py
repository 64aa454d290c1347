"""BubblewrapSandbox: one bubblewrap, one bash, one workspace in memory.

What holds the agent: namespaces of its own (no network, no foreign processes, no host files but a read-only /usr),
no privileges (as root we become uid 65534 *before* bwrap starts: the kernel never counts root's processes), no nested
user namespaces, a system-call filter, resource limits, and writable areas that are file systems of a fixed size.

The workspace is such a tmpfs, made by bwrap inside the sandbox and held open from outside through /proc/PID/root. So
its size is the kernel's business and not a watchdog's, nothing of it touches a disk, it vanishes with the last process
and the last descriptor even if we are killed, and seeding and grading go through one open folder that no mount, link or
rename inside can redirect. What a size does not bound, the number of files, is one cheap statvfs (`treadle.envs.usage`).
The held folder also outlives the sandbox's processes: when the agent manages to take down process 1, a new sandbox
starts and the files are copied over.

Who waits for whom: `start` waits for the driver's `ready`; `run` for its `done` or for its death; `close` for the exit
of bwrap. Starting must happen on a thread that lives on: `--die-with-parent` means the parent *thread*.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from treadle.core.errors import SandboxError
from treadle.envs import seccomp
from treadle.envs.channel import Channel, Gone
from treadle.envs.driver import SWEEP_ALL, driver
from treadle.envs.sandbox import CommandResult, SandboxLimits
from treadle.envs.seeding import copy_tree, write_tree
from treadle.envs.usage import Usage

INSTALL = "apt-get install bubblewrap"
NOBODY = 65534
START_S = 30.0
"""How long a sandbox may take to start, on a machine that is busy with other things."""
EXIT_S = 5.0
_APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
_USER_NAMESPACES = "sudo sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/work",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
}
_FILES = {
    "/etc/passwd": f"agent:x:{NOBODY}:{NOBODY}:agent:/work:/bin/bash\n",
    "/etc/group": f"agent:x:{NOBODY}:\n",
}


class BubblewrapSandbox:
    """A `Sandbox` on bubblewrap. Needs Linux on x86-64 or aarch64, bwrap >= 0.8 and bash."""

    def __init__(self, *, limits: SandboxLimits | None = None) -> None:
        self._limits = limits or SandboxLimits()
        self._box: _Box | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @staticmethod
    def available() -> str | None:
        """None when sandboxes start on this machine, else one line: why not, and the one thing to do about it."""
        return _available()

    @property
    def workspace(self) -> Path:
        """Host-side path of the workspace; valid until `close` and within this process only."""
        return Path(f"/proc/self/fd/{self._live().areas[0]}")

    async def start(self) -> None:
        """Start bwrap and the shell's driver. Raises SandboxError with the reason and the remedy."""
        assert self._box is None, "a sandbox starts once"
        if (reason := self.available()) is not None:
            raise SandboxError(reason)
        self._box = await _start(self._limits)

    async def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        modes: Mapping[str, int] | None = None,
        mtimes: Mapping[str, float] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        """Write files into the workspace. Raises EnvError when it cannot hold them."""
        write_tree(
            self._live().areas[0], files, modes=modes or {}, mtimes=mtimes or {}, folders=tuple(folders), owner=_owner()
        )

    async def run(self, command: str, *, timeout_s: float = 10.0) -> CommandResult:
        """Run one command in the persistent shell. If it takes the whole sandbox down, a new one gets its files."""
        async with self._turn:
            box = self._live()
            if box.channel.gone:
                raise SandboxError("the sandbox was lost while no command was running")
            try:
                return await box.channel.run(command, timeout_s=timeout_s)
            except Gone as gone:
                self._box = await self._revived(box)
                return gone.result or CommandResult(status=None, output="", restarted=True)

    async def close(self) -> None:
        """Kill everything inside and free the workspace."""
        self._closed = True
        box, self._box = self._box, None
        if box is not None:
            await box.end()
            box.release()

    async def _revived(self, old: _Box) -> _Box:
        """A new sandbox with the old one's files."""
        await old.end()
        new = await _start(self._limits)
        source = Path(f"/proc/self/fd/{old.areas[0]}")
        limits = self._limits
        copy_tree(
            source,
            new.areas[0],
            owner=_owner(),
            most_bytes=limits.file_bytes,
            most_files=limits.workspace_files,
        )
        old.release()
        return new

    def _live(self) -> _Box:
        if self._box is None:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        return self._box


class _Box:
    """One running bwrap: its process, its channel, its open areas."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.exit = os.pidfd_open(process.pid)
        """Readable once bwrap exited."""
        self.first = 0
        """The host's id of process 1 inside; 0 until it is known."""
        self.areas: list[int] = []
        """Open folders: the workspace and /tmp."""
        self.channel: Channel

    def interrupt(self) -> None:
        """Have the driver kill the running command."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        if self.first and self.process.returncode is None:
            try:
                os.kill(self.first, number)
            except ProcessLookupError:
                return  # it ended by itself

    async def end(self) -> None:
        """Kill all processes and wait until they are gone; files stay as long as the areas are open."""
        self._signal(signal.SIGKILL)
        self.process.kill()
        self.channel.close()
        loop = asyncio.get_running_loop()
        exited = loop.create_future()
        loop.add_reader(self.exit, lambda: None if exited.done() else exited.set_result(None))
        try:
            await asyncio.wait({exited}, timeout=EXIT_S)
        finally:
            loop.remove_reader(self.exit)
            self.process.poll()

    def release(self) -> None:
        """Let go of the files."""
        for folder in (self.exit, *self.areas):
            os.close(folder)


async def _start(limits: SandboxLimits) -> _Box:
    """Start one bwrap. Raises SandboxError."""
    ours, theirs = socket.socketpair()
    output, their_output = os.pipe()
    if (owner := _owner()) is not None:
        os.fchown(their_output, owner, owner)  # so that /dev/stdout and /dev/stderr can be opened inside
    with _Passed(theirs.detach(), their_output) as passed:
        try:
            box = _Box(_spawn(passed, limits))
        except OSError as error:
            ours.close()
            os.close(output)
            raise SandboxError(f"sandbox: cannot start bwrap: {error}") from error
    usage: Usage | None = None
    box.channel = Channel(
        ours,
        output,
        interrupt=box.interrupt,
        most_bytes=limits.output_bytes,
        guard=lambda: usage() if usage is not None else "",
    )
    try:
        async with asyncio.timeout(START_S):
            await box.channel.ready()
        box.first = int(json.loads("".join(box.channel.greeting))["child-pid"])
        for area in ("work", "tmp"):
            box.areas.append(os.open(f"/proc/{box.first}/root/{area}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        usage = Usage(first=box.first, areas=box.areas, limits=limits)
    except (Gone, TimeoutError, OSError, ValueError, KeyError) as error:
        words = box.channel.captured() or str(error) or type(error).__name__
        await box.end()
        box.release()
        raise SandboxError(f"sandbox: cannot start: {words.splitlines()[0]}") from error
    except asyncio.CancelledError:
        await box.end()
        box.release()
        raise
    return box


class _Passed:
    """The descriptors that a bwrap inherits; our copies are closed once it has started."""

    def __init__(self, control: int, output: int) -> None:
        self.control, self.output = control, output
        self.info = os.dup(control)
        self.filter = _piped(seccomp.program())
        self.files = {path: _piped(content.encode()) for path, content in _FILES.items()}

    @property
    def inherited(self) -> tuple[int, ...]:
        return (self.control, self.info, self.filter, *self.files.values())

    def __enter__(self) -> _Passed:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self.inherited, self.output):
            os.close(descriptor)


def _piped(content: bytes) -> int:
    """A descriptor that reads as this content, which must fit into a pipe."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def _spawn(passed: _Passed, limits: SandboxLimits) -> subprocess.Popen[bytes]:
    """Start bwrap without `user` or `preexec_fn`: then Python uses vfork, which costs nothing in a large trainer."""
    program = driver(control=passed.control, home="/work", state="/tmp/.state", sweep=SWEEP_ALL, limits=limits)
    files = [word for path, fd in passed.files.items() for word in ("--perms", "0644", "--file", str(fd), path)]
    return subprocess.Popen(
        [
            *_prefix(),
            *("--info-fd", str(passed.info), "--seccomp", str(passed.filter)),
            *_mounts(limits),
            *files,
            *("--remount-ro", "/", "--chdir", "/work"),
            *("/usr/bin/bash", "--noprofile", "--norc", "-c", program, "bash"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=passed.output,
        stderr=passed.output,
        pass_fds=passed.inherited,
    )


def _prefix() -> list[str]:
    """Drop root, then bwrap with its namespaces and a clean environment."""
    user = str(NOBODY)
    drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return [
        *(drop if _owner() is not None else ()),
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", user, "--gid", user),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)),
    ]


def _mounts(limits: SandboxLimits) -> list[str]:
    """A read-only system without /usr/local, a few devices, and two writable areas of a fixed size."""
    words = ["--ro-bind", "/usr", "/usr"]
    if os.path.isdir("/usr/local"):
        words += ["--size", "4096", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    words += ["--perms", "0755", "--dir", "/etc", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    words += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
    for device in ("null", "zero", "full", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "shm": "/tmp"}
    for name, target in links.items():
        words += ["--symlink", target, f"/dev/{name}"]
    size = str(limits.workspace_bytes)
    words += ["--size", size, "--perms", "1777", "--tmpfs", "/tmp", "--perms", "0755", "--dir", "/tmp/.state"]
    return [*words, "--size", size, "--perms", "0755", "--tmpfs", "/work"]


def _owner() -> int | None:
    """The machine's user id that the sandbox's user is; None when that is our own."""
    return NOBODY if os.geteuid() == 0 else None


@functools.cache
def _available() -> str | None:
    """Look for what is needed, then start one bwrap as every sandbox will."""
    if platform.system() != "Linux" or not seccomp.supported():
        return f"sandbox: bubblewrap needs Linux on x86_64 or aarch64, got {platform.system()} on {platform.machine()}"
    if shutil.which("bwrap") is None:
        return f"sandbox: bubblewrap is not installed: {INSTALL}"
    if not os.access("/usr/bin/bash", os.X_OK):
        return "sandbox: /usr/bin/bash is missing: apt-get install bash"
    if _owner() is not None and shutil.which("setpriv") is None:
        return "sandbox: setpriv is missing, which root needs to drop its rights: apt-get install util-linux"
    command = [*_prefix(), *_mounts(SandboxLimits()), "/usr/bin/bash", "-c", "exit 0"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"sandbox: bwrap does not run: {error}"
    if tried.returncode == 0:
        return None
    words = (tried.stderr.strip() or f"exit status {tried.returncode}").splitlines()[0]
    return f"sandbox: bwrap is refused ({words}): {_remedy(words)}"


def _remedy(words: str) -> str:
    """The one thing to do about a refusal."""
    try:
        restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").read_text().strip() == "1"
    except OSError:
        restricted = False
    if restricted:
        return _APPARMOR
    if "Unknown option" in words:
        return f"bwrap 0.8 or newer is needed: {INSTALL}"
    return _USER_NAMESPACES
