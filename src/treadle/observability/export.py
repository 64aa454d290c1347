"""Exports: the events of a run as JSON lines, for other programs. Never read back by Treadle.

Every line is strict JSON: numbers that are not finite are null, values of unknown types are text. A line that the disk
takes only in part is taken back, so that what is there can always be parsed.
"""

from __future__ import annotations

import contextlib
import json
import math
from io import FileIO
from pathlib import Path

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
        self._files: dict[str, FileIO] = {}
        self._closed = False

    def emit(self, event: Event) -> None:
        """Take one event; nothing after `close`."""
        if self._closed or event.name in PROGRESS:
            return
        facts = {"name": event.name, "at": event.at, **event.values}
        line = json.dumps({key: _strict(value) for key, value in facts.items()}, ensure_ascii=False, default=str)
        data = (line + "\n").encode("utf-8", "backslashreplace")
        self._write("events.jsonl", data)
        if event.name in METRICS:
            self._write("metrics.jsonl", data)

    def close(self) -> None:
        """Close both files."""
        self._closed = True
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()

    def _write(self, name: str, data: bytes) -> None:
        try:
            if name not in self._files:
                self._files[name] = _opened(self.folder / name)
            file = self._files[name]
            written = file.write(data)
            if written != len(data):
                self.lost += 1
                file.truncate(file.tell() - (written or 0))
        except OSError:  # an export must not end a run: the database is the record
            self.lost += 1


def _opened(path: Path) -> FileIO:
    """To append to; a last line that a killed process wrote in part is ended first."""
    file = FileIO(path, "a+")
    size = file.seek(0, 2)
    file.seek(max(size - 1, 0))
    if size and file.read(1) != b"\n":
        file.write(b"\n")
    return file


def _strict(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
