"""Which checkpoint of a run is meant: its `end`, `best`, `last`, a version, or any folder with weights.

The end is what the run ended with: the best one with `pipeline.finish=best`, else the last.

The best one follows from the run's evaluations (`pipeline.best`): the ledger says which version it is, its folder must
still be there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.pipeline.best import best_of
from treadle.pipeline.config import Finish
from treadle.pipeline.evaluation import Evaluation
from treadle.recipes.folder import RunFolder
from treadle.trajectory.store import read_events

END = "end"
VERSION = re.compile(r"(?:version-)?([0-9]{1,9})")
"""`7`, `version-7`, `version-000007`."""


def chosen_checkpoint(folder: RunFolder, which: str | Path, *, finish: Finish = "last") -> Path:
    """The checkpoint that `which` names. Raises ConfigError saying which ones there are."""
    name = str(which)
    if name == END:
        name = finish
    if name == "best":
        return _best(folder)
    if name == "last":
        if folder.newest_checkpoint is None:
            raise ConfigError(
                f"checkpoint 'last': {folder.path} has none yet; go on with `treadle train --resume {folder.path}`"
            )
        return folder.newest_checkpoint
    version = VERSION.fullmatch(name)
    if version is not None:
        paths = [folder.version(int(version[1]))]
    else:
        paths = [folder.checkpoints / name, Path(name)] if name else []
    for path in paths:
        if os.path.isdir(path):  # unlike Path.is_dir it takes names that no file can have
            return path
    raise ConfigError(
        f"checkpoint {name!r}: there is no such folder ({_held(folder)}); expected end, best, last, a version or a "
        "folder"
    )


def held_best(folder: RunFolder, evaluations: Iterable[Evaluation]) -> Path | None:
    """The checkpoint of the best evaluated version whose checkpoint is there; None when none is."""
    found = best_of(e for e in evaluations if folder.version(e.version).is_dir())
    return None if found is None else folder.version(found.version)


def _best(folder: RunFolder) -> Path:
    events = read_events(folder.database, prefix="evaluation.done")
    best = best_of(Evaluation.of(event.values) for event in events if event.name == "evaluation.done")
    if best is None:
        raise ConfigError(
            f"checkpoint 'best': {folder.path} has no evaluation of a trained version yet ({_held(folder)}); "
            "expected last, a version or a folder; pipeline.evaluate_every evaluates a new run while it trains"
        )
    path = folder.version(best.version)
    if not path.is_dir():
        raise ConfigError(
            f"checkpoint 'best': the best of {folder.path} is version {best.version} (evaluation {best.label}, solved "
            f"{best.overall.solved}/{best.overall.total}), whose checkpoint is not there ({_held(folder)}); expected "
            "last, a version or a folder; pipeline.evaluate_every keeps the best one in a new run"
        )
    return path


def _held(folder: RunFolder) -> str:
    """What there is, in words."""
    names = ", ".join(path.name for path in folder.held)
    return f"this run has {names}" if names else "this run has none yet"
