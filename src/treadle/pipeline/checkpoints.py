"""Checkpoints of a run: one folder per saved version, newest kept, older ones removed only afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

from treadle.pipeline.ledger import Ledger
from treadle.pipeline.trainer import BlockingThread, Trainer


class Checkpoints:
    """Saves a trainer under `folder`/version-N; keeps the newest `keep`."""

    def __init__(self, folder: Path | None, *, trainer: Trainer, thread: BlockingThread, ledger: Ledger, keep: int = 1,
                 deadline_s: float = 3600.0) -> None:
        self.folder = folder
        """None saves nothing."""
        self.trainer = trainer
        self.thread = thread
        self.ledger = ledger
        self.keep = keep
        self.deadline_s = deadline_s
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
        await self.thread.call(
            f"checkpoint of version {version}", lambda: self._write(target), deadline_s=self.deadline_s
        )
        self.newest = target
        self.ledger.tell("checkpoint.saved", {
            "update": update, "version": version, "path": str(target), "seconds_s": clock.now() - began,
        })
        return target

    def _write(self, target: Path) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trainer.save(target)
        held = sorted(self.folder.glob("version-*"))
        for old in [path for path in held if path != target][: max(len(held) - self.keep, 0)]:
            shutil.rmtree(old)
