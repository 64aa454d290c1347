"""The system-call filter of a sandbox, as a BPF program for `bwrap --seccomp`.

It refuses (EPERM) what a shell never needs and what would lead out of a sandbox or around its limits: new namespaces,
mounts, tracing and foreign memory, kernel keys, eBPF, io_uring, and memory that no size limit sees (System V shared
memory, memfd). `clone3` looks unknown (ENOSYS), so that libraries fall back to `clone`, whose flags can be checked.
Calls of a foreign architecture kill the process.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TIOCSTI = 0x5412
_SAME_EVERYWHERE = (
    *(425, 426, 427, 428, 429, 430, 431, 432, 433),  # io_uring*, open_tree, move_mount, fs*
    *(438, 442, 443, 447),  # pidfd_getfd, mount_setattr, quotactl_fd, memfd_secret
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """System-call numbers of one architecture."""

    audit: int
    """AUDIT_ARCH_* as the kernel reports it."""
    clone: int
    ioctl: int
    deny: tuple[int, ...]


_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        ioctl=16,
        deny=(
            *(29, 30, 31, 64, 65, 66, 67, 68, 69, 70, 71, 101),  # shm*, sem*, msg*, ptrace
            *(155, 161, 165, 166, 167, 168, 169, 170, 171),  # pivot_root, chroot, mount .. setdomainname
            *(175, 176, 179, 246, 248, 249, 250),  # modules, quotactl, kexec_load, add_key .. keyctl
            *(272, 298, 303, 304, 308, 310, 311, 312, 313),  # unshare, perf, *_handle, setns, process_vm_*, kcmp
            *(319, 320, 321, 323),  # memfd_create, kexec_file_load, bpf, userfaultfd
        ),
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        ioctl=29,
        deny=(
            *(39, 40, 41, 51, 60, 97),  # umount2, mount, pivot_root, chroot, quotactl, unshare
            *(104, 105, 106, 117, 142, 161, 162),  # kexec_load, modules, ptrace, reboot, set*name
            *(186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197),  # msg*, sem*, shm*
            *(217, 218, 219, 224, 225, 241, 264, 265, 268),  # keys, swap, perf, *_handle, setns
            *(270, 271, 272, 273, 279, 280, 282, 294),  # process_vm_*, kcmp, module, memfd, bpf, userfaultfd, kexec
        ),
    ),
}


def supported() -> bool:
    """Whether the filter knows this machine's architecture."""
    return platform.machine() in _MACHINES


def program() -> bytes:
    """The filter for this machine. Raises KeyError where it is not `supported`."""
    machine = _MACHINES[platform.machine()]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
    ]
    if platform.machine() == "x86_64":
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | _EPERM)]  # the x32 numbers
    code += [(_EQUAL, 0, 1, 435), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for number in (*machine.deny, *_SAME_EVERYWHERE):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    code += _when(machine.clone, _ARG0, (_ANY_BIT, 0, 1, _NEW_NAMESPACES))
    code += _when(machine.ioctl, _ARG1, (_EQUAL, 0, 1, _TIOCSTI))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in code)


def _when(number: int, argument: int, test: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Refuse a call when its argument passes the test; the call's number is loaded before and after."""
    return [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, argument), test, (_RETURN, 0, 0, _ERRNO | _EPERM), (_LOAD, 0, 0, _NR)]
