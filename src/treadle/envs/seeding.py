"""Writing files into a workspace and copying one, as the user who lives in it.

Written files must belong to the sandbox's user: the machine's root is nobody inside a user namespace and may not even
create a file there. So the calling *thread* takes that user's file identity (setfsuid) for the time of one call, which
never awaits. Components are opened without following links, here as in `treadle.envs.grading`: a workspace may hold
what an agent wrote.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from treadle.core.errors import EnvError
from treadle.envs.grading import Kind, link_target, listing, parts_of, read_bytes

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def write_tree(
    root: int,
    files: Mapping[str, bytes],
    *,
    modes: Mapping[str, int],
    mtimes: Mapping[str, float],
    folders: Iterable[str],
    owner: int | None,
) -> None:
    """Write files and folders below the open folder `root`; then modes, then times, deepest first.

    `owner` is the user id to write as; None writes as the caller. Raises ValueError for a bad path, EnvError when
    the workspace cannot hold it.
    """
    every = {path: parts_of(path) for path in (*folders, *files, *modes, *mtimes)}
    deepest_first = sorted(every, key=lambda path: len(every[path]), reverse=True)
    with as_user(owner):
        try:
            for path in folders:
                os.close(enter(root, every[path]))
            for path, content in files.items():
                _write(root, every[path], content)
            for path in (path for path in deepest_first if path in modes or path in mtimes):
                _stamp(root, every[path], modes.get(path), mtimes.get(path))
        except OSError as error:
            raise EnvError(f"workspace: cannot write {error.filename or 'a file'}: {error.strerror}") from error


def copy_tree(source: Path, root: int, *, owner: int | None, most_bytes: int, most_files: int) -> None:
    """Copy what is readable below `source` to below `root`: files, folders, links, with modes and times."""
    found = listing(source, most=most_files)
    files: dict[str, bytes] = {}
    for entry in found.entries:
        if entry.kind is Kind.FILE and (content := read_bytes(source, entry.path, most=most_bytes)) is not None:
            files[entry.path] = content
    folders = [entry.path for entry in found.entries if entry.kind is Kind.FOLDER]
    kept = {*files, *folders}
    write_tree(root, files, modes={}, mtimes={}, folders=folders, owner=owner)
    with as_user(owner):
        for entry in found.entries:
            if entry.kind is Kind.LINK and (target := link_target(source, entry.path)) is not None:
                *above, name = parts_of(entry.path)
                folder = enter(root, tuple(above))
                os.symlink(target, name, dir_fd=folder)
                os.close(folder)
    modes = {entry.path: entry.mode for entry in found.entries if entry.path in kept}
    mtimes = {entry.path: entry.mtime for entry in found.entries if entry.path in kept}
    write_tree(root, {}, modes=modes, mtimes=mtimes, folders=(), owner=owner)


def _write(root: int, parts: tuple[str, ...], content: bytes) -> None:
    folder = enter(root, parts[:-1])
    try:
        file = os.open(parts[-1], _NEW, 0o644, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        os.fchmod(file, 0o644)  # whatever the trainer's umask is
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)


def _stamp(root: int, parts: tuple[str, ...], mode: int | None, mtime: float | None) -> None:
    """Set time, then mode: a mode may take away the right to do more. A link is left alone."""
    folder = enter(root, parts[:-1])
    try:
        if stat.S_ISLNK(os.lstat(parts[-1], dir_fd=folder).st_mode):
            return
        if mtime is not None:
            os.utime(parts[-1], (mtime, mtime), dir_fd=folder, follow_symlinks=False)
        if mode is not None:
            os.chmod(parts[-1], mode, dir_fd=folder)
    finally:
        os.close(folder)


def enter(root: int, parts: tuple[str, ...]) -> int:
    """Open a folder below root, made where missing; the caller closes it."""
    current = os.dup(root)
    try:
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=current)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=current)
                below = os.open(part, _FOLDER, dir_fd=current)
                os.fchmod(below, 0o755)
            os.close(current)
            current = below
    except OSError:
        os.close(current)
        raise
    return current


@contextmanager
def as_user(owner: int | None) -> Iterator[None]:
    """This thread's file accesses are the owner's."""
    if owner is None:
        yield
        return
    libc = ctypes.CDLL(None)
    group = libc.setfsgid(owner)
    user = libc.setfsuid(owner)
    try:
        yield
    finally:
        libc.setfsuid(user)
        libc.setfsgid(group)
