"""BubblewrapSandbox: one bubblewrap, one bash, one workspace in memory.

What holds the agent: namespaces of its own (no network, no foreign processes, no host files but a read-only /usr),
no privileges (as root we become uid 65534 *before* bwrap starts: the kernel never counts root's processes), no nested
user namespaces, a system-call filter, resource limits, and writable areas that are file systems of a fixed size.

The workspace is such a tmpfs, made by bwrap inside the sandbox and held open from outside through /proc/PID/root. So
its size is the kernel's business and not a watchdog's, nothing of it touches a disk, it vanishes with the last process
and the last descriptor even if we are killed, and seeding and grading go through one open folder that no mount, link or
rename inside can redirect. What a size does not bound, the number of files, is one cheap statvfs (`Usage`). The held
folder also outlives the sandbox's processes: when the agent manages to take down process 1, a new bwrap starts and
the files are copied over.

A fork is a fresh bubblewrap with an image of the files (`treadle.envs.image` says why not an overlay).

A sandbox must be started on a thread that lives on: `--die-with-parent` means the parent *thread*.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from treadle.core.errors import EnvError, SandboxError
from treadle.envs import seccomp
from treadle.envs.box import START_S, STATE, Box, BoxedSandbox, Pipes
from treadle.envs.driver import SWEEP_ALL, driver
from treadle.envs.sandbox import SandboxLimits
from treadle.envs.seeding import copy_tree

INSTALL = "apt-get install bubblewrap"
NOBODY = 65534
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


class BubblewrapSandbox(BoxedSandbox):
    """A `Sandbox` on bubblewrap. Needs Linux on x86-64 or aarch64, bwrap >= 0.8 and bash."""

    @staticmethod
    def available() -> str | None:
        """None when sandboxes start on this machine, else one line: why not, and the one thing to do about it."""
        return _available()

    @property
    def _owner(self) -> int | None:
        return _owner()

    @property
    def _home(self) -> str:
        return "/work"

    async def _opened(self, old: Box | None) -> Box:
        if (reason := self.available()) is not None:
            raise SandboxError(reason)
        box = _spawned(self.limits)
        await box.ready(_areas)
        if old is not None and old.areas:
            most = self.limits.workspace_files
            try:
                copy_tree(
                    old.workspace, box.areas[0], owner=_owner(), most_bytes=self.limits.file_bytes, most_files=most
                )
            except (OSError, EnvError) as error:
                await box.end()
                box.release()
                raise SandboxError(f"sandbox: a new one could not take over the workspace: {error}") from error
        return box


def _areas(greeting: str) -> tuple[int, list[Path]]:
    """Process 1 as the host sees it, and the writable areas as seen from there: bwrap's info is the greeting."""
    found = re.search(r'"child-pid": (\d+)', greeting)
    if found is None:
        raise ValueError(f"bwrap did not tell its child's process id: {greeting!r}")
    first = int(found[1])
    return first, [Path(f"/proc/{first}/root/work"), Path(f"/proc/{first}/root/tmp")]


def _spawned(limits: SandboxLimits) -> Box:
    """Start one bwrap."""
    try:
        pipes = Pipes(owner=_owner())
        passed = _Passed(pipes)
    except OSError as error:
        raise SandboxError(f"sandbox: cannot start bwrap: {error}") from error
    try:
        process = _spawn(passed, limits)
    except OSError as error:
        pipes.close()
        raise SandboxError(f"sandbox: cannot start bwrap: {error}") from error
    finally:
        passed.close()
        pipes.started()
    return Box(process, pipes, limits=limits)


class _Passed:
    """The descriptors that a bwrap inherits."""

    def __init__(self, pipes: Pipes) -> None:
        self.control, self.output = pipes.their_control, pipes.their_output
        self.info = os.dup(self.control)
        self.filter = _piped(seccomp.program())
        self.files = {path: _piped(content.encode()) for path, content in _FILES.items()}

    def close(self) -> None:
        """Close our copies of all but the box's own pipes."""
        for descriptor in (self.info, self.filter, *self.files.values()):
            os.close(descriptor)


def _piped(content: bytes) -> int:
    """A descriptor that reads as this content, which must fit into a pipe."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def _spawn(passed: _Passed, limits: SandboxLimits) -> subprocess.Popen[bytes]:
    """Start bwrap without `user` or `preexec_fn`: then Python uses vfork, which costs nothing in a large trainer."""
    program = driver(control=passed.control, home="/work", state=f"/tmp/{STATE}", sweep=SWEEP_ALL, limits=limits)
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
        pass_fds=(passed.control, passed.info, passed.filter, *passed.files.values()),
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
    words += ["--size", size, "--perms", "1777", "--tmpfs", "/tmp", "--perms", "0755", "--dir", f"/tmp/{STATE}"]
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
