"""Making a process reward model from a run: its stored groups, one of its checkpoints, a head that is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treadle.core.config import read_toml
from treadle.core.errors import ConfigError
from treadle.learner.config import LearnerConfig
from treadle.learner.prm import PrmFit, PrmReport, PrmTrainer
from treadle.models.policy import Policy
from treadle.models.source import resolve
from treadle.pipeline.past import TICKET
from treadle.recipes.chosen import END, chosen_checkpoint
from treadle.recipes.folder import RunFolder
from treadle.trajectory.forest import Forest
from treadle.trajectory.store import read_groups, read_meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Prm:
    """What was made."""

    folder: Path
    report: PrmReport


def make_prm(
    run: str | Path, *, out: Path | None = None, checkpoint: str = END, fit: PrmFit | None = None
) -> Prm:
    """Fit a head on the values of a run's stored nodes, and write it to `out`, or to `prm` in the run's folder.

    The nodes are those of the groups that training played: what a version was chosen by, or demonstrated, teaches none.

    Raises ConfigError when the folder is no run, or holds too few groups that were scored, ModelError, StoreError.
    """
    folder = RunFolder.existing(run)
    forests = [
        forest for group in read_groups(folder.database, split="train")
        if TICKET.fullmatch(group.key.id) and len(forest := Forest.of([group]))
    ]
    if not forests:
        raise ConfigError(f"prm: {folder.path} holds no group that was scored; train first")
    trainer = PrmTrainer(Policy.load(_body(folder, checkpoint)), fit or PrmFit(), LearnerConfig())
    report = trainer.fit(forests)
    target = out or folder.path / "prm"
    trainer.save(target, report)
    return Prm(folder=target, report=report)


def _body(folder: RunFolder, checkpoint: str) -> str | Path:
    """The model folder that the head stands on: a checkpoint's, or the run's model where it has none."""
    if checkpoint == END and folder.newest_checkpoint is None:
        return resolve(read_meta(folder.database).get("model", ""))
    found = chosen_checkpoint(folder, _ending(folder) if checkpoint == END else checkpoint)
    return found / "model" if (found / "model").is_dir() else found


def _ending(folder: RunFolder) -> str:
    """`last` or `best`: what the run's recipe ends with. Raises ConfigError when it cannot be read."""
    pipeline = read_toml(folder.recipe).get("pipeline")
    return str(pipeline.get("finish", "last")) if isinstance(pipeline, dict) else "last"
