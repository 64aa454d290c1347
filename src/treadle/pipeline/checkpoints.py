"""Checkpoints of a run: one folder per saved version. The newest and the best stay, others go only afterwards.

A checkpoint appears in one rename, and with it a `Mark`, where the run stood, and checksums of its files. Before one is
written, and before the best one makes way for a better one, everything that the ledger was told is committed: the
ledger is never behind what the checkpoints say. A run that goes on begins at the newest checkpoint that is what was
written and can be read: `begin_at`.
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
from treadle.pipeline.checksums import verify, whole
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
    tokens: int = 0
    """Sampled for those batches."""

    def text(self) -> str:
        """As `read` takes it."""
        return json.dumps({**asdict(self), "curriculum": dict(self.curriculum)}, indent=2) + "\n"

    @classmethod
    def read(cls, checkpoint: Path) -> Mark:
        """The mark of a checkpoint. Raises StoreError when it has none that can be read."""
        try:
            found = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))
            return cls(
                stage=str(found["stage"]), update=int(found["update"]), curriculum=dict(found["curriculum"]),
                tokens=int(found.get("tokens", 0)),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"checkpoint {checkpoint}: {MARK} cannot be read ({error!r:.200})") from error


class Books(Protocol):
    """What keeps the ledger."""

    async def settle(self) -> None:
        """Return when all that was told is committed. Raises DeadlineExceeded, StoreError."""
        ...


class Checkpoints:
    """Saves a trainer under `folder`/version-N; keeps the newest `keep`, and the best one beside them."""

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
        self.best: Path | None = None
        """The checkpoint that stays whatever `keep` says; None where no evaluation chose one."""

    async def save(self, *, update: int) -> Path | None:
        """Save the version of now, unless it is saved already. Raises StoreError, DeadlineExceeded."""
        version = self.trainer.version
        if self.folder is None:
            return None
        target = self.folder / folder_name(version)
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

    async def keep_best(self, *, update: int) -> bool:
        """Save the version of now, unless it is saved already, as the best so far; the best one before it may go.

        Says whether it was another one before. Raises StoreError, DeadlineExceeded.
        """
        target = await self.save(update=update)
        if target is None or target == self.best:
            return False
        if self.books is not None:
            await self.books.settle()
        self.best = target
        await self.thread.call(
            f"removing checkpoints beside {target.name}", lambda: self._prune(target), deadline_s=self.deadline_s
        )
        return True

    def _write(self, target: Path, mark: Mark) -> None:
        assert self.folder is not None
        _make(self.folder)
        with whole(target) as fresh:
            self.trainer.save(fresh, beside={MARK: mark.text()})
        self._prune(target)

    def _prune(self, newest: Path) -> None:
        """Remove what is neither among the newest nor the best."""
        assert self.folder is not None
        held = sorted(self.folder.glob("version-*"))
        for old in [path for path in held if path != newest][: max(len(held) - self.keep, 0)]:
            if old != self.best:
                shutil.rmtree(old)


def folder_name(version: int) -> str:
    """The folder of a version's checkpoint. Names sort like versions."""
    return f"version-{version:06d}"


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

    One that cannot be read, or is not what was written, is passed over in one line; one without checksums is taken, and
    that is said, too. What a killed process left half written is removed.
    """
    for left in folder.glob(".*version-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    for path in sorted(folder.glob("version-*"), reverse=True):
        try:
            mark = Mark.read(path)
            if mark.stage:
                summed = verify(path)
                restore(path, mark)
                if not summed:
                    say(f"checkpoint {path.name} has no checksums, it was saved without: taking it as it can be read")
                return path, mark
            say(f"checkpoint {path.name} was saved in the middle of the cold start: passing it over")
        except (StoreError, ModelError) as error:
            say(f"{error}: going back to the one before")
    return None, Mark()
