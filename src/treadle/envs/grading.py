"""Reading what an agent left behind, without being led astray.

An agent can plant links to host files, FIFOs that block a reader, files of any size and folders of any depth. Every
path component is opened relative to its parent with O_NOFOLLOW and O_NONBLOCK, so a link is never followed, at the
end or in the middle; only regular files are read, up to a cap. What is missing, foreign or too large reads as None.
Calls are quick and blocking; `root` may be a `Sandbox.workspace`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

MOST_BYTES = 1 << 20
MOST_ENTRIES = 10_000
MOST_DEPTH = 32

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Kind(StrEnum):
    """What stands at a path."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    """A symbolic link, whatever it points to."""
    OTHER = "other"
    """FIFO, socket or device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing in a workspace, as lstat sees it."""

    path: str
    """Relative to the root, with `/`."""
    kind: Kind
    size: int
    """Bytes; of a link, the length of its target."""
    mode: int
    """Permission bits, 0 to 0o7777."""
    mtime: float
    """Seconds since the epoch."""
    links: int
    """Number of hard links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything below a folder, sorted by path."""

    entries: tuple[Entry, ...]
    complete: bool
    """False when a bound on entries or depth, or an unreadable folder, cut it short."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths alone."""
        return tuple(entry.path for entry in self.entries)


def parts_of(rel: str) -> tuple[str, ...]:
    """The components of a relative path. Raises ValueError for one that is empty, absolute or climbs out."""
    path = PurePosixPath(rel)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in rel:
        raise ValueError(f"workspace path: got {rel!r}, expected a relative path without '..'")
    return path.parts


def read_bytes(root: Path, rel: str, *, most: int = MOST_BYTES) -> bytes | None:
    """Content of a regular file; None when it is missing, no regular file, unreadable or larger than `most`."""
    with _parent(root, rel) as (folder, name):
        return None if folder is None else _read(folder, name, most)


def read_text(root: Path, rel: str, *, most: int = MOST_BYTES) -> str | None:
    """Like `read_bytes`, decoded as UTF-8; None also when it is not UTF-8."""
    content = read_bytes(root, rel, most=most)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def entry(root: Path, rel: str) -> Entry | None:
    """What stands at a path, links not followed; None when nothing does or a component on the way is no folder."""
    with _parent(root, rel) as (folder, name):
        return None if folder is None else _entry(folder, name, rel)


def kind(root: Path, rel: str) -> Kind | None:
    """The kind of what stands at a path; None when nothing does."""
    found = entry(root, rel)
    return None if found is None else found.kind


def exists(root: Path, rel: str) -> bool:
    """Whether anything stands at a path, a dangling link included."""
    return entry(root, rel) is not None


def mode(root: Path, rel: str) -> int | None:
    """Permission bits of what stands at a path; None when nothing does."""
    found = entry(root, rel)
    return None if found is None else found.mode


def link_target(root: Path, rel: str) -> str | None:
    """Where a symbolic link points, as written; None when it is no link."""
    with _parent(root, rel) as (folder, name):
        if folder is None:
            return None
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError:
            return None


def listing(root: Path, rel: str = "", *, most: int = MOST_ENTRIES, depth: int = MOST_DEPTH) -> Listing:
    """Everything below a folder (the root when `rel` is empty), at most `most` entries and `depth` levels deep."""
    entries: list[Entry] = []
    with _folder(root, parts_of(rel) if rel else ()) as folder:
        complete = folder is not None and _collect(folder, rel, entries, most=most, depth=depth)
    return Listing(entries=tuple(sorted(entries, key=lambda found: found.path)), complete=complete)


def _collect(folder: int, prefix: str, entries: list[Entry], *, most: int, depth: int) -> bool:
    """Append what is below an open folder; False when something was left out."""
    complete = True
    with os.scandir(folder) as found:
        for item in found:
            if len(entries) >= most:
                return False
            path = f"{prefix}/{item.name}" if prefix else item.name
            this = _entry(folder, item.name, path)
            if this is None:
                continue
            entries.append(this)
            if this.kind is Kind.FOLDER:
                with _opened(item.name, folder) as below:
                    deeper = below is not None and depth > 1
                    complete &= deeper and _collect(below or 0, path, entries, most=most, depth=depth - 1)
    return complete


def _read(folder: int, name: str, most: int) -> bytes | None:
    """Read one regular file below an open folder, `most` bytes at most."""
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            return None
        chunks: list[bytes] = []
        left = most + 1
        while left > 0 and (chunk := os.read(file, min(left, 1 << 18))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks) if left > 0 else None
    finally:
        os.close(file)


def _entry(folder: int, name: str, rel: str) -> Entry | None:
    """lstat one name below an open folder."""
    try:
        found = os.lstat(name, dir_fd=folder)
    except OSError:
        return None
    kinds = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}
    return Entry(
        path=rel,
        kind=kinds.get(stat.S_IFMT(found.st_mode), Kind.OTHER),
        size=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        mtime=found.st_mtime,
        links=found.st_nlink,
    )


@contextmanager
def _parent(root: Path, rel: str) -> Iterator[tuple[int | None, str]]:
    """The open folder that holds the last component of `rel`, and that component."""
    *above, name = parts_of(rel)
    with _folder(root, tuple(above)) as folder:
        yield folder, name


@contextmanager
def _folder(root: Path, parts: tuple[str, ...]) -> Iterator[int | None]:
    """The folder reached from `root` without following any link; None when it cannot be reached."""
    with _opened(str(root), None) as top:
        current = top
        opened: list[int] = []
        try:
            for part in parts:
                if current is None:
                    break
                try:
                    current = os.open(part, _FOLDER, dir_fd=current)
                    opened.append(current)
                except OSError:
                    current = None
            yield current
        finally:
            for folder in opened:
                os.close(folder)


@contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int | None]:
    """One open folder. Below a parent no link is followed; the root itself may be reached through one."""
    flags = _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW
    try:
        folder = os.open(name, flags, dir_fd=parent)
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        os.close(folder)
