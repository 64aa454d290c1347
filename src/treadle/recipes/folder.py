"""The run folder: everything that a run leaves behind.

    runs/NAME-DATE-TIME/
        recipe.toml         the resolved recipe
        run.db              segments, rewards, rollouts, groups, events
        events.jsonl        every event, one JSON object a line
        metrics.jsonl       one line per update and evaluation
        checkpoints/        version-N/, loadable by transformers
        report.md           what came out, with learning-curve.png
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from treadle.core.errors import StoreError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @classmethod
    def create(cls, runs: Path, name: str) -> RunFolder:
        """A new, empty folder. Raises StoreError when it cannot be made."""
        stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        for number in range(100):
            path = runs / (stem if number == 0 else f"{stem}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise StoreError(f"run folder {path} cannot be made: {error.strerror}; set runs=FOLDER") from error
            return cls(path)
        raise StoreError(f"run folder {runs / stem}: a hundred of that name exist; wait a second and try again")

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def database(self) -> Path:
        """The trajectory store."""
        return self.path / "run.db"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, newest last by name."""
        return self.path / "checkpoints"

    @property
    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        found = sorted(self.checkpoints.glob("version-*")) if self.checkpoints.is_dir() else []
        return found[-1] if found else None
