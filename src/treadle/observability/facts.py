"""Reading events: numbers out of loose values, and how they are said to a person."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from treadle.core.events import Event


def number(event: Event, key: str) -> float | None:
    """The value of `key` as a number; None when it is missing or is not one."""
    value = event.values.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(event: Event, key: str) -> int:
    """The value of `key` as a whole number; 0 when it is missing or is none."""
    value = number(event, key)
    return 0 if value is None or not math.isfinite(value) else int(value)


def text(event: Event, key: str) -> str:
    """The value of `key` as text that cannot drive a terminal; empty when it is missing."""
    value = event.values.get(key)
    return "" if value is None else printable(str(value))


def printable(text: str) -> str:
    """Control characters and private code points made visible; line ends and tabs stay."""
    return "".join(
        c if c in "\n\t" or (c.isprintable() and not 0xE000 <= ord(c) <= 0xF8FF) else f"\\x{ord(c):02x}" for c in text
    )


def counted(event: Event, prefix: str) -> dict[str, int]:
    """Counts whose keys begin with `prefix`, such as `dropped.`, by the rest of the key; those of 0 are left out."""
    found = {printable(key.removeprefix(prefix)): whole(event, key) for key in event.values if key.startswith(prefix)}
    return {name: count for name, count in found.items() if count > 0}


def listed(counts: dict[str, int]) -> str:
    """`overlong 2, void_turn 1`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def taped(ends: Iterable[Event]) -> str:
    """What was done with a cassette, summed over the ends of a run's sittings; empty where there was none."""
    held = [event for event in ends if "cassette.replayed" in event.values]
    if not held:
        return ""
    recorded, replayed, missed, differing = (
        sum(whole(event, f"cassette.{what}") for event in held)
        for what in ("recorded", "replayed", "missed", "differing")
    )
    more = f", {differing} unlike the first to the same history" if differing else ""
    return f"cassette: {recorded} answers recorded{more}, {replayed} replayed, {missed} missed"


def duration(seconds: float | None) -> str:
    """`45 s`, `3 min 05 s`, `2 h 10 min`; `-` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    all_s = round(seconds)
    if all_s < 60:
        return f"{all_s} s"
    if all_s < 3600:
        return f"{all_s // 60} min {all_s % 60:02d} s"
    return f"{all_s // 3600} h {all_s % 3600 // 60:02d} min"


def amount(value: float | None, form: str = ".2f") -> str:
    """A number in this format; `-` for None."""
    return "-" if value is None else format(value, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Solved out of total, with the interval that came with it."""

    solved: int
    total: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """0..1; 0 when nothing was tried."""
        return self.solved / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.share:.3f}  ({self.solved}/{self.total}, 95 % {self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One `evaluation.done` event."""

    label: str
    update: int
    overall: Tried
    levels: dict[str, tuple[int, int]]
    """Level to (solved, total)."""
    families: dict[str, tuple[int, int]]
    temperature: float | None

    @classmethod
    def of(cls, event: Event) -> Evaluated:
        """Read the event."""
        return cls(
            label=text(event, "label"), update=whole(event, "update"),
            overall=Tried(
                solved=whole(event, "solved"), total=whole(event, "total"),
                low=number(event, "low_share") or 0.0, high=number(event, "high_share") or 0.0,
            ),
            levels=_counts(event, "level."), families=_counts(event, "family."),
            temperature=number(event, "temperature"),
        )


def _counts(event: Event, prefix: str) -> dict[str, tuple[int, int]]:
    end = ".total"
    names = [k[len(prefix) : -len(end)] for k in event.values if k.startswith(prefix) and k.endswith(end)]
    return {
        printable(name): (whole(event, f"{prefix}{name}.solved"), whole(event, f"{prefix}{name}{end}"))
        for name in names
    }
