"""Checksums of a checkpoint: a bit that flips on the disk is found before it is trained on.

    whole(target)   a folder to fill beside `target`; when all is in it, `checksums.json` is written with the digest of
                    every file, and the folder gets the target's name in one rename
    verify(folder)  every file is what it was when the folder got its name

The digests are of the files as they were written, so what is found is what happened to them afterwards: flipped bits,
lost pages, a file that was cut, changed or removed by hand. Files that were added later are nobody's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.core.errors import StoreError
from treadle.core.folders import atomic_folder

SUMS = "checksums.json"
"""The file inside a checkpoint: a digest for each of the others."""
DIGEST = 16
"""Bytes of a digest."""


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A path to make a folder at; it becomes `target`, with checksums, when the block ends well.

    A target that is there already is replaced. Raises StoreError when the disk refuses.
    """
    try:
        with atomic_folder(target, replace=True) as fresh:
            fresh.rmdir()  # who saves makes it
            yield fresh
            write(fresh)
    except OSError as error:
        raise StoreError(
            f"checkpoint {target}: cannot write ({error.strerror or error}); free disk space or name another"
        ) from error


def write(folder: Path) -> None:
    """Write the digests of everything that lies in `folder` beside it. Raises OSError."""
    facts = {"digest": f"blake2b, {DIGEST} bytes", "files": {path: _digest(folder / path) for path in _files(folder)}}
    (folder / SUMS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def verify(folder: Path) -> bool:
    """Whether there are checksums; raises StoreError naming the first file that is not as it was written."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
        meant = {str(name): str(digest) for name, digest in json.loads(text)["files"].items()}
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"checkpoint {folder}: {SUMS} cannot be read ({error!r:.200})") from error
    for name, expected in meant.items():
        try:
            found = _digest(folder / name)
        except (OSError, ValueError) as error:  # a name that flipped may be no name at all
            raise StoreError(f"checkpoint {folder}: {name!r} cannot be read ({error!r:.200})") from error
        if found != expected:
            raise StoreError(f"checkpoint {folder}: {name} has checksum {found}, {expected} was written")
    return True


def _files(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in found if name != SUMS]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST)).hexdigest()
