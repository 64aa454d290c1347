"""disk_full_checkpoint: a disk that is really full while a checkpoint is written, again and again, of one run.

    python -m bench.fault_disk DISK PLAIN JOURNAL

DISK is a small file system of its own. Just before a checkpoint is due, a file is written there that takes all room but
for what the ledger needs. The run must fail with one clear error, leave the checkpoints that it had, and go on when the
file is gone. In the end its weights must be, bit for bit, those of a run in PLAIN that nothing was done to. The last
line printed is a JSON list of what was not so.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from bench.fault_lab import Injector
from bench.killable_tiny import recipe
from treadle import StoreError, train
from treadle.core.events import Event

FULL_AT = (("coldstart", 0), ("update", 2), ("update", 4), ("update", 5))
"""Stage and number of the update after which a checkpoint is written; 0 is the last one of its stage."""
TOLD = {"coldstart": ("coldstart.update",), "update": ("update.done", "update.skipped")}
"""Stage to the events that end its updates."""
LEFT_BYTES = 300_000
"""Less than the weights need, and enough for a few rows of the ledger."""
FILES = ("model/model.safetensors", "optimiser.safetensors", "learner.json")


class Filler:
    """A listener that fills the disk at one event."""

    def __init__(self, disk: Path, at: tuple[str, int], injector: Injector) -> None:
        self.file = disk / "filler"
        self.at = at
        self.injector = injector

    def emit(self, event: Event) -> None:
        stage, number = self.at
        if event.name not in TOLD[stage] or self.file.exists():
            return
        if event.values["update"] == (number or event.values["updates"]):
            self.injector.note(f"the disk is full after {stage} {event.values['update']}")
            self.fill()

    def fill(self) -> None:
        """Take all room that there is, then give a little back."""
        with self.file.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 65_536)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(0, file.tell() - LEFT_BYTES))


def saved(run: Path) -> dict[str, dict[str, int]]:
    """Files of every checkpoint and their sizes, by its name; one that is half written is among them."""
    root = run / "checkpoints"
    return {
        made.name: {str(path.relative_to(made)): path.stat().st_size for path in made.rglob("*") if path.is_file()}
        for made in (root.iterdir() if root.is_dir() else ())
    }


def newest(run: Path) -> list[bytes]:
    """Weights, moments and counters of the last checkpoint."""
    last = max((run / "checkpoints").glob("version-*"))
    return [(last / name).read_bytes() for name in FILES]


def fill_and_go_on(disk: Path, plain: Path, injector: Injector) -> list[str]:
    """What was not as it should be."""
    wrong: list[str] = []
    run: Path | None = None
    for at in FULL_AT:
        filler = Filler(disk, at, injector)
        before = saved(run) if run is not None else {}
        try:
            train(recipe(disk, slots=1), view="none", listeners=[filler], resume=run)
            wrong.append(f"{at}: the run went on with a full disk")
        except StoreError as error:
            if "\n" in str(error) or not any(word in str(error) for word in ("space", "disk")):
                wrong.append(f"{at}: the error does not say that the disk is full: {error}")
        (run,) = disk.glob("killable-*")
        after = saved(run)
        last = max(before, default="")
        if before.get(last) != after.get(last) or any(name.startswith(".") for name in after):
            wrong.append(f"{at}: checkpoints were {sorted(before)} and are {sorted(after)}")
        filler.file.unlink(missing_ok=True)
    result = train(recipe(disk, slots=1), view="none", resume=run)
    if result.reason != "done":
        wrong.append(f"the run ended as {result.reason}")
    whole = train(recipe(plain, slots=1), view="none")
    if newest(result.folder) != newest(whole.folder):
        wrong.append("the weights are not those of a run that had room")
    return wrong


def main() -> int:
    disk, plain, journal = map(Path, sys.argv[1:])
    sys.stdout.write(json.dumps(fill_and_go_on(disk, plain, Injector(journal, kind="disk_full_checkpoint"))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
