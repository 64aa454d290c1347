"""Folders that appear whole or not at all.

`atomic_folder` hands out a fresh hidden folder beside the target. When its block ends well, every file is flushed to
disk and the folder is renamed into place; when it fails, the folder is removed. A reader therefore sees the old
folder or the new one, never a mixture, and two processes may build the same target at once: each works in its own
folder, and with `replace=False` the first one wins and the other's work is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STALE_S = 6 * 3600.0
"""A working folder this old was left behind by a killed process and may be removed."""

RACES = 8
"""How often a replacement is tried while other processes replace the same folder."""


@contextmanager
def atomic_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to fill; it becomes `target` when the block ends without an exception.

    With `replace` an existing target is swapped out (for the moment between two renames it does not exist); without,
    an existing target is kept. Raises OSError when the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    fresh = target.parent / f".{target.name}.{uuid.uuid4().hex[:12]}.tmp"
    fresh.mkdir()
    try:
        yield fresh
        flush(fresh)
        _put(fresh, target, replace=replace)
        _sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def flush(folder: Path) -> None:
    """Force every file of `folder`, and the folder itself, onto the disk; readable by whom the umask allows."""
    mask = os.umask(0)
    os.umask(mask)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.chmod(0o666 & ~mask)
        _sync(path)
    _sync(folder)


def discard(target: Path) -> None:
    """Remove a folder (or file) at once: renamed away first, so nobody sees it half removed."""
    old = target.parent / f".{target.name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        target.rename(old)
    except FileNotFoundError:
        return
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _put(fresh: Path, target: Path, *, replace: bool) -> None:
    with _turn(target.parent):
        _rename(fresh, target, replace=replace)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One writer at a time puts folders into `folder`; held for two renames. Where locks are missing, nobody waits."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _rename(fresh: Path, target: Path, *, replace: bool) -> None:
    for _ in range(RACES):
        try:
            fresh.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return
        if not replace:
            return
        discard(target)
    raise FileExistsError(errno.EEXIST, f"other processes keep writing {target}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(target: Path) -> None:
    oldest = time.time() - STALE_S
    for left in target.parent.glob(f".{target.name}.*.tmp"):
        try:
            stale = left.stat().st_mtime < oldest
        except FileNotFoundError:
            continue
        if stale:
            shutil.rmtree(left, ignore_errors=True)
