"""Who is busy: seconds per stage of one rollout, and of a whole run.

Many rollouts are in the same stage at once. The seconds of a rollout are its own; a stage of the run counts as busy
while at least one call is in it, so its idle share is the part of the time in which nobody was.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from treadle.core.ports import Clock

STAGES = ("generate", "env", "score", "update")
"""The stages that a run reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was measured between two readings of a meter."""

    seconds: float
    busy: dict[str, float]
    """Seconds in which at least one call was in the stage."""
    counts: dict[str, float]

    def idle_share(self, stage: str) -> float:
        """Share of the window in which nobody was in the stage."""
        if self.seconds <= 0:
            return 0.0
        return min(1.0, max(0.0, 1.0 - self.busy.get(stage, 0.0) / self.seconds))

    @property
    def regime(self) -> str:
        """The busiest stage: what the run is bound by."""
        return max(STAGES, key=lambda stage: self.busy.get(stage, 0.0))


@dataclass(slots=True)
class _Stage:
    inside: int = 0
    since: float = 0.0
    busy: float = 0.0


@dataclass(slots=True)
class StageMeter:
    """Measures stages and counts things. Owned by the controller's event loop."""

    clock: Clock
    _stages: dict[str, _Stage] = field(default_factory=dict)
    _counts: dict[str, float] = field(default_factory=dict)
    _began: float | None = None

    def busy(self, stage: str, spent: MutableMapping[str, float] | None = None) -> Visit:
        """Count the time inside as `stage`, in the run and, if given, in `spent`."""
        held = self._stages.get(stage)
        if held is None:
            held = self._stages[stage] = _Stage()
        return Visit(self, held, stage, spent)

    def count(self, name: str, amount: float = 1.0) -> None:
        """Add to a counter of the window."""
        self._counts[name] = self._counts.get(name, 0.0) + amount

    def read(self) -> Window:
        """What was measured since the last reading; starts a new window."""
        now = self.clock.now()
        for stage in self._stages.values():
            if stage.inside > 0:
                stage.busy += now - stage.since
                stage.since = now
        began = now if self._began is None else self._began
        window = Window(
            seconds=now - began, busy={n: s.busy for n, s in self._stages.items()}, counts=dict(self._counts)
        )
        for stage in self._stages.values():
            stage.busy = 0.0
        self._counts.clear()
        self._began = now
        return window

    def begin(self, now: float) -> None:
        """The first window starts with the first visit."""
        if self._began is None:
            self._began = now


class Visit:
    """One call in one stage, from `__enter__` to `__exit__`."""

    __slots__ = ("_entered", "_held", "_meter", "_spent", "_stage")

    def __init__(
        self, meter: StageMeter, held: _Stage, stage: str, spent: MutableMapping[str, float] | None
    ) -> None:
        self._meter, self._held, self._stage, self._spent = meter, held, stage, spent

    def __enter__(self) -> None:
        now = self._entered = self._meter.clock.now()
        held = self._held
        if held.inside == 0:
            held.since = now
            self._meter.begin(now)
        held.inside += 1

    def __exit__(self, *_: object) -> None:
        left, held, spent = self._meter.clock.now(), self._held, self._spent
        held.inside -= 1
        if held.inside == 0:
            held.busy += left - held.since
        if spent is not None:
            spent[self._stage] = spent.get(self._stage, 0.0) + left - self._entered
