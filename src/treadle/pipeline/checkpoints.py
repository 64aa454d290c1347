"""Checkpoints of a run: one folder per saved version, newest kept, older ones removed only afterwards.

A checkpoint appears in one rename, and with it a `Mark`: where the run stood. Before one is written everything that the
ledger was told is committed, so that the ledger is never behind a checkpoint. A run that goes on begins at the newest
checkpoint that can be read: `begin_at`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from treadle.core.errors import ModelError, StoreError
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.trainer import BlockingThread, Trainer

MARK = "run.json"
"""The mark's file inside a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a run stood when a checkpoint was made."""

    stage: str = ""
    """What the weights have behind them: `coldstart` (all of it), `rl` (some of it), or nothing to go on from."""
    update: int = 0
    """Batches that reinforcement learning had learned from."""
    curriculum: Mapping[str, object] = field(default_factory=dict)
    """What `Curriculum.state` gave; empty before reinforcement learning."""

    def text(self) -> str:
        """As `read` takes it."""
        return json.dumps({**asdict(self), "curriculum": dict(self.curriculum)}, indent=2) + "\n"

    @classmethod
    def read(cls, checkpoint: Path) -> Mark:
        """The mark of a checkpoint. Raises StoreError when it has none that can be read."""
        try:
            found = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))
            return cls(stage=str(found["stage"]), update=int(found["update"]), curriculum=dict(found["curriculum"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"checkpoint {checkpoint}: {MARK} cannot be read ({error!r:.200})") from error


class Books(Protocol):
    """What keeps the ledger."""

    async def settle(self) -> None:
        """Return when all that was told is committed. Raises DeadlineExceeded, StoreError."""
        ...


class Checkpoints:
    """Saves a trainer under `folder`/version-N; keeps the newest `keep`."""

    def __init__(self, folder: Path | None, *, trainer: Trainer, thread: BlockingThread, ledger: Ledger, keep: int = 1,
                 deadline_s: float = 3600.0, books: Books | None = None) -> None:
        self.folder = folder
        """None saves nothing."""
        self.trainer = trainer
        self.thread = thread
        self.ledger = ledger
        self.keep = keep
        self.deadline_s = deadline_s
        self.books = books
        """Settled before a checkpoint; None where nobody keeps the ledger."""
        self.mark: Callable[[], Mark] = Mark
        """Says where the run stands; who trains sets it."""
        self.newest: Path | None = None
        """The newest complete checkpoint of this run; None before the first."""

    async def save(self, *, update: int) -> Path | None:
        """Save the version of now, unless it is saved already. Raises StoreError, DeadlineExceeded."""
        version = self.trainer.version
        if self.folder is None:
            return None
        target = self.folder / f"version-{version:06d}"
        if self.newest == target:
            return target
        clock = self.ledger.meter.clock
        began = clock.now()
        mark = self.mark()  # first: what is admitted while the books settle is in neither of the two, or in the ledger
        if self.books is not None:
            await self.books.settle()
        await self.thread.call(
            f"checkpoint of version {version}", lambda: self._write(target, mark), deadline_s=self.deadline_s
        )
        self.newest = target
        self.ledger.tell("checkpoint.saved", {
            "update": update, "version": version, "path": str(target), "seconds_s": clock.now() - began,
        })
        return target

    def _write(self, target: Path, mark: Mark) -> None:
        assert self.folder is not None
        _make(self.folder)
        self.trainer.save(target, beside={MARK: mark.text()})
        held = sorted(self.folder.glob("version-*"))
        for old in [path for path in held if path != target][: max(len(held) - self.keep, 0)]:
            shutil.rmtree(old)


def _make(folder: Path) -> None:
    """Make a folder that is there after a power cut, too. Raises StoreError."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True)
        handle = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        said = f"{folder} cannot be made: {error.strerror}; free some disk space or set runs=FOLDER"
        raise StoreError(said) from error


def begin_at(
    folder: Path, restore: Callable[[Path, Mark], object], *, say: Callable[[str], object]
) -> tuple[Path | None, Mark]:
    """The newest checkpoint that `restore` takes, and its mark; (None, an empty mark) when there is none.

    One that cannot be read is passed over in one line, and what a killed process left half written is removed.
    """
    for left in folder.glob(".version-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    for path in sorted(folder.glob("version-*"), reverse=True):
        try:
            mark = Mark.read(path)
            if mark.stage:
                restore(path, mark)
                return path, mark
            say(f"checkpoint {path.name} was saved in the middle of the cold start: passing it over")
        except (StoreError, ModelError) as error:
            say(f"{error}: going back to the one before")
    return None, Mark()
