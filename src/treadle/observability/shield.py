"""The border between a run and its readers: what a listener raises ends the listening, never the run."""

from __future__ import annotations

import contextlib
import sys

from treadle.core.events import Event, Listener


class Shield:
    """Passes events on until the listener raises; from then on it is left alone, and standard error says so once."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.broken: Exception | None = None
        """What the listener raised; None while it works."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        if self.broken is not None:
            return
        try:
            self.listener.emit(event)
        except Exception as error:  # the named border: a reader of a run must not end it
            self.broken = error
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(
                    f"treadle: {type(self.listener).__name__} is told nothing more, because it failed at {event.name}: "
                    f"{type(error).__name__}: {error}\n"
                )
