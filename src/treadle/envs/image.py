"""Images: the files of a sandbox as they stand, kept in memory, to be written into a fresh one.

    open areas of an idle box --captured--> Image --written--> open areas of a fresh box

An image names contents by digest and holds them apart (`Contents`), so equal files, and equal folders, of many images
are kept once. It keeps modes, times, links as they are, further names of one file, holes, empty folders, FIFOs and
sockets, under names of any bytes; it does not keep extended attributes, owners, and times of access. No link is ever
followed: every component is opened relative to its parent, and a special file is never opened.

Why a copy and not an overlay: the lower folder of an overlay would have to live on a file system of the host's, where
no size limit of the sandbox's holds, and be mounted in a name space that outlives the sandbox. Written into a fresh
box, a fork has walls and limits of its own, as if it had been there all along, and nothing of it touches a disk. An
area is small (16 MiB), so the copy is memory traffic of a few milliseconds.

All calls block. They take open folders and never a path, so they may run in a thread while a box ends.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from treadle.core.errors import EnvError
from treadle.envs.seeding import as_user, enter
from treadle.envs.snapshots import Contents

MOST_DEPTH = 64
"""Levels of folders; every level is an open descriptor while it is captured."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIGEST = 16
"""Bytes of a digest. SHA-256, because processors have instructions for it."""
_PLAIN = 2
"""Version of marshal whose bytes depend on the values alone."""
_AGAIN = 0
"""Kind of a further name of a file; other kinds are those of `stat`."""

Node: TypeAlias = tuple[str, int, int, int, int, tuple[tuple[int, bytes], ...], str]
"""Name, kind, permission bits, time in ns, size, (offset, digest) of what is no hole, and the target: where a link
points, or the first name of a file from the area's root."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder of an area."""

    path: tuple[str, ...]
    """From the area's root, whose path is empty."""
    mode: int
    mtime: int
    """In ns."""
    listing: bytes
    """Digest of its nodes, without folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What stood in the writable areas of a box. A copy of it is itself."""

    areas: tuple[tuple[Folder, ...], ...]
    """Folders of each area, parents first."""
    shell: bytes = b""
    """Digest of the shell's state, as its driver wrote it; empty when there is none."""
    home: str
    """Path of the workspace as the shell knew it."""
    contents: Contents = field(default_factory=Contents)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Image:
        return self

    @property
    def bytes(self) -> int:
        """Of all contents, equal ones once."""
        return sum(map(len, self.contents.by_digest.values()))

    @property
    def digest(self) -> str:
        """Equal for equal files; times count."""
        return hashlib.blake2b(repr((self.areas, self.shell)).encode(), digest_size=16).hexdigest()


def captured(
    areas: Sequence[int], *, state: str, slot: str, home: str, most_files: int, most_bytes: int
) -> Image:
    """The files of these open folders. `state` is the driver's folder in the last one, `slot` the file that counts.

    `most_files` and `most_bytes` bound all areas together. Raises EnvError beyond them, OSError when reading fails.
    """
    taking = _Capture(files=most_files, room=most_bytes)
    found = []
    shell = b""
    for number, area in enumerate(areas):
        folders: list[Folder] = []
        last = number == len(areas) - 1
        with _open_to_us(area) as mode:
            taking.folder(area, (), folders, skip=state if last else "")
            shell = taking.shell(area, state, slot) if last else b""
        folders[0] = replace(folders[0], mode=mode)
        found.append(tuple(folders))
    return Image(areas=tuple(found), shell=shell, home=home, contents=taking.contents)


def written(image: Image, areas: Sequence[int], *, state: str, slot: str, home: str, owner: int | None) -> None:
    """Write an image into the open, empty areas of a fresh box, as its user. Raises OSError when that fails."""
    contents = image.contents.by_digest
    with as_user(owner):
        for area, folders in zip(areas, image.areas, strict=True):
            for folder in folders:
                with _entered(area, folder.path) as into:
                    for node in marshal.loads(contents[folder.listing]):
                        _WRITERS[node[1]](area, into, node, contents)
            for folder in reversed(folders):  # deepest first: a mode may take away the right to enter
                with _entered(area, folder.path) as into:
                    os.utime(into, ns=(folder.mtime, folder.mtime))
                    os.fchmod(into, folder.mode)
        if image.shell:
            saved = contents[image.shell].replace(os.fsencode(image.home), os.fsencode(home))
            with _entered(areas[-1], (state,)) as into:
                file = os.open(slot, _NEW, 0o600, dir_fd=into)
                try:
                    _fill(file, 0, saved)
                finally:
                    os.close(file)


class _Capture:
    """One capture under way."""

    def __init__(self, *, files: int, room: int) -> None:
        self.contents = Contents()
        self._files, self._room = files, room
        self._first: dict[tuple[int, int], str] = {}
        """Device and inode of files with several names to the first one."""

    def folder(self, folder: int, path: tuple[str, ...], into: list[Folder], *, skip: str = "") -> None:
        """Take an open folder and what is below it; `skip` is left out."""
        if len(path) > MOST_DEPTH:
            raise EnvError(f"snapshot: folders are more than {MOST_DEPTH} deep")
        nodes, below = list[Node](), list[tuple[str, os.stat_result]]()
        for name in sorted(os.listdir(folder)):
            if name == skip and not path:
                continue
            self._files -= 1
            if self._files < 0:
                raise EnvError("snapshot: there are more files than a sandbox may have")
            found = os.lstat(name, dir_fd=folder)
            if stat.S_ISDIR(found.st_mode):
                below.append((name, found))
            else:
                nodes.append(self._node(folder, path, name, found))
        this = os.fstat(folder)
        listing = self._kept(marshal.dumps(nodes, _PLAIN))
        into.append(Folder(path, stat.S_IMODE(this.st_mode), this.st_mtime_ns, listing))
        for name, found in below:
            at = len(into)
            with _opened(name, _FOLDER, folder, found, 0o700) as inner:
                self.folder(inner, (*path, name), into)
            into[at] = replace(into[at], mode=stat.S_IMODE(found.st_mode))  # as it was, also if it was opened up

    def shell(self, area: int, state: str, slot: str) -> bytes:
        """Digest of the shell's state; empty when there is none that can be read."""
        try:
            folder = os.open(state, _FOLDER, dir_fd=area)
        except OSError:
            return b""
        try:
            found = os.lstat(slot, dir_fd=folder)
            pieces = self._pieces(folder, slot, found) if stat.S_ISREG(found.st_mode) else ()
            return self._kept(b"".join(self.contents.by_digest[digest] for _, digest in pieces))
        except FileNotFoundError:
            return b""
        finally:
            os.close(folder)

    def _node(self, folder: int, path: tuple[str, ...], name: str, found: os.stat_result) -> Node:
        kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
        key, here = (found.st_dev, found.st_ino), "/".join((*path, name))
        if found.st_nlink > 1 and (first := self._first.setdefault(key, here)) != here:
            return (name, _AGAIN, 0, 0, 0, (), first)
        pieces = self._pieces(folder, name, found) if kind == stat.S_IFREG else ()
        target = os.readlink(name, dir_fd=folder) if kind == stat.S_IFLNK else ""
        return (name, kind, mode, found.st_mtime_ns, found.st_size, pieces, target)

    def _pieces(self, folder: int, name: str, found: os.stat_result) -> tuple[tuple[int, bytes], ...]:
        """What is no hole of a regular file."""
        if not found.st_size:
            return ()
        with _opened(name, _READ, folder, found, 0o400) as file:
            return tuple((start, self._kept(_read(file, start, end))) for start, end in self._spans(file, found))

    def _spans(self, file: int, found: os.stat_result) -> Iterator[tuple[int, int]]:
        """Start and end of what is no hole; the room is taken before it is read."""
        whole = found.st_blocks * 512 >= found.st_size
        for start, end in [(0, found.st_size)] if whole else _data(file, found.st_size):
            self._room -= end - start
            if self._room < 0:
                raise EnvError("snapshot: files hold more bytes than a sandbox may have")
            yield start, end

    def _kept(self, content: bytes) -> bytes:
        digest = hashlib.sha256(content).digest()[:_DIGEST]
        self.contents.by_digest.setdefault(digest, content)
        return digest


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole is left
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


def _read(file: int, start: int, end: int) -> bytes:
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@contextmanager
def _opened(name: str, flags: int, folder: int, found: os.stat_result, needed: int) -> Iterator[int]:
    """Open what lstat found, opened up for the moment where its mode forbids it to us, who own it."""
    mode = stat.S_IMODE(found.st_mode)
    closed_up = os.geteuid() != 0 and mode & needed != needed
    if closed_up:
        _chmod(name, folder, mode | needed)
    try:
        file = os.open(name, flags, dir_fd=folder)
        try:
            yield file
        finally:
            os.close(file)
    finally:
        if closed_up:
            _chmod(name, folder, mode)


@contextmanager
def _open_to_us(area: int) -> Iterator[int]:
    """The mode of an area, whose owner we are where we are not root: for the moment we may read it."""
    mode = stat.S_IMODE(os.fstat(area).st_mode)
    closed_up = os.geteuid() != 0 and mode & 0o700 != 0o700
    if closed_up:
        os.fchmod(area, mode | 0o700)
    try:
        yield mode
    finally:
        if closed_up:
            os.fchmod(area, mode)


def _chmod(name: str, folder: int, mode: int) -> None:
    """Of the thing itself, never of what a link points to."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


@contextmanager
def _entered(area: int, path: tuple[str, ...]) -> Iterator[int]:
    folder = enter(area, path)
    try:
        yield folder
    finally:
        os.close(folder)


Writer: TypeAlias = Callable[[int, int, Node, Mapping[bytes, bytes]], None]


def _file(_area: int, into: int, node: Node, contents: Mapping[bytes, bytes]) -> None:
    name, _, mode, mtime, size, pieces, _ = node
    file = os.open(name, _NEW, 0o600, dir_fd=into)
    try:
        filled = 0
        for start, digest in pieces:
            filled = _fill(file, start, contents[digest])
        if filled < size:
            os.ftruncate(file, size)
        os.utime(file, ns=(mtime, mtime))
        os.fchmod(file, mode)
    finally:
        os.close(file)


def _link(_area: int, into: int, node: Node, _contents: Mapping[bytes, bytes]) -> None:
    os.symlink(node[6], node[0], dir_fd=into)
    os.utime(node[0], ns=(node[3], node[3]), dir_fd=into, follow_symlinks=False)


def _again(area: int, into: int, node: Node, _contents: Mapping[bytes, bytes]) -> None:
    *above, first = node[6].split("/")
    with _entered(area, tuple(above)) as folder:
        os.link(first, node[0], src_dir_fd=folder, dst_dir_fd=into, follow_symlinks=False)


def _special(_area: int, into: int, node: Node, _contents: Mapping[bytes, bytes]) -> None:
    os.mknod(node[0], node[1] | 0o600, dir_fd=into)
    os.utime(node[0], ns=(node[3], node[3]), dir_fd=into, follow_symlinks=False)
    _chmod(node[0], into, node[2])


_WRITERS: Mapping[int, Writer] = {
    stat.S_IFREG: _file, stat.S_IFLNK: _link, stat.S_IFIFO: _special, stat.S_IFSOCK: _special, _AGAIN: _again,
}


def _fill(file: int, start: int, content: bytes) -> int:
    """Write at an offset; the offset after it."""
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, start)
        view, start = view[done:], start + done
    return start
