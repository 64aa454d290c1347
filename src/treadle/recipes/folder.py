"""The run folder: everything that a run leaves behind.

    runs/NAME-DATE-TIME/
        recipe.toml         the resolved recipe
        run.db              segments, rewards, rollouts, groups, events
        events.jsonl        every event, one JSON object a line
        metrics.jsonl       one line per update and evaluation
        checkpoints/        version-N/, each with a `model` folder that transformers loads: the newest and the best
        reference/          the weights that reinforcement learning began with, where algorithm.kl asks for them
        weights/            the newest version, while the run lasts, for an engine that copies it
        report.md           what came out, with learning-curve.png
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from treadle.core.errors import ConfigError, StoreError
from treadle.pipeline.checkpoints import folder_name


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
            return cls(path.absolute())  # an environment may change the working directory
        raise StoreError(f"run folder {runs / stem}: a hundred of that name exist; wait a second and try again")

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The folder of a run that was made before. Raises ConfigError when it is none."""
        folder = cls(Path(path).absolute())
        if not folder.path.is_dir():
            raise ConfigError(f"{path}: there is no such folder, expected a run folder such as runs/shell-...")
        if not folder.database.is_file():
            raise ConfigError(f"{path}: got a folder without run.db, expected a run folder such as runs/shell-...")
        return folder

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
    def weights(self) -> Path:
        """Published weights, while an engine copies them."""
        return self.path / "weights"

    @property
    def reference(self) -> Path:
        """The weights that reinforcement learning began with, where a penalty compares with them."""
        return self.path / "reference"

    @property
    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        return next(reversed(self.held), None)

    @property
    def held(self) -> list[Path]:
        """The complete checkpoints, newest last."""
        return sorted(self.checkpoints.glob("version-*")) if self.checkpoints.is_dir() else []

    def version(self, number: int) -> Path:
        """Where the checkpoint of a version is, or would be."""
        return self.checkpoints / folder_name(number)

    def write_recipe(self, toml: str) -> None:
        """Keep the resolved recipe, whole or not at all. Raises StoreError."""
        fresh = self.path / ".recipe.toml.tmp"
        try:
            fresh.write_text(toml, encoding="utf-8")
            fresh.replace(self.recipe)
        except OSError as error:
            raise StoreError(
                f"{self.recipe} cannot be written: {error.strerror}; free some disk space or set runs=FOLDER"
            ) from error

    def require_room(self, size: int) -> None:
        """Raise StoreError unless so many bytes are free."""
        free = shutil.disk_usage(self.path).free
        if free < size:
            raise StoreError(
                f"run folder {self.path}: {free / 1e6:,.0f} MB are free, checkpoints need {size / 1e6:,.0f} MB: free "
                "some disk space or set runs=FOLDER"
            )

    def discard(self) -> None:
        """Remove the folder of a run that never started."""
        shutil.rmtree(self.path, ignore_errors=True)
