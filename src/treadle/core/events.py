"""Events: what happened, as small frozen records, told to whoever listens.

A room that does work emits; observability and the store listen. The one who emits never waits for a listener and
never learns what it does. An event is a name, the time and flat numbers or strings: enough for a line in
events.jsonl, a progress view and a timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    name: str
    """Dotted name, subject and what became of it, such as `group.dropped`."""
    at: float
    """Seconds since the epoch."""
    values: Mapping[str, Value]
    """Flat facts; units stand in the key (`_s`, `_tokens`)."""


class Listener(Protocol):
    """Takes events. Must return at once and must not raise."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


class Silence:
    """A listener that forgets everything."""

    def emit(self, event: Event) -> None:
        """Do nothing."""


class Fanout:
    """Passes every event to several listeners, in order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def emit(self, event: Event) -> None:
        """Pass the event on."""
        for listener in self._listeners:
            listener.emit(event)
