"""Exports: the events of a run as JSON lines, for other programs. Never read back by Treadle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

from treadle.core.events import Event

METRICS = ("coldstart.update", "update.done", "update.skipped", "evaluation.done")
"""Events that metrics.jsonl holds."""
PROGRESS = ("evaluation.progress",)
"""Events that say nothing once the next one came: no line."""


class JsonlExport:
    """Writes events.jsonl and metrics.jsonl into a folder. A line is out when the event was taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = 0
        """Lines that the disk refused."""
        self._files: dict[str, IO[str]] = {}

    def emit(self, event: Event) -> None:
        """Take one event."""
        if event.name in PROGRESS:
            return
        line = json.dumps({"name": event.name, "at": event.at, **event.values}, ensure_ascii=False)
        self._write("events.jsonl", line)
        if event.name in METRICS:
            self._write("metrics.jsonl", line)

    def close(self) -> None:
        """Close both files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, name: str, line: str) -> None:
        try:
            if name not in self._files:
                self._files[name] = (self.folder / name).open("a", encoding="utf-8", buffering=1)
            self._files[name].write(line + "\n")
        except OSError:  # an export must not end a run: the database is the record
            self.lost += 1
