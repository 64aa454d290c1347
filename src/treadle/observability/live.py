"""The live terminal view: where the run is, how it learns, what it waits for. Redraws itself in place.

It holds the last facts it heard and draws them four times a second from the console's own thread; hearing an event
only stores it. A stage comes back into view when an evaluation beside it is done. Notes that must not scroll away
(failures, checkpoints) are printed above the view. When it closes, the view is gone and the notes stay.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from treadle.core.events import Event
from treadle.observability.facts import Evaluated, amount, duration, number, text, whole
from treadle.observability.lines import STAGES, PlainLines, evaluation_line

SPARKS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Updates that the curve shows."""
EVALUATIONS = 8
"""Evaluations that are shown: the last ones, and the best."""
NOTES = (
    "run.started", "run.resumed", "replayed.update.done", "coldstart.demos", "rollout.done", "group.dropped",
    "wait.expired", "watchdog.acted", "run.stopping", "checkpoint.saved", "checkpoint.best",
    "run.took_back", "run.done",
)
"""Events whose plain line is printed above the view."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    """How far one stage is."""

    stage: str = ""
    label: str = ""
    total: int = 0
    """Units of progress."""
    began: float = 0.0
    """Seconds, as events are dated."""
    done: int = 0
    left: float | None = None
    """Seconds; None when nobody knows."""
    over: bool = False

    def move(self, event: Event) -> None:
        """Take an event that says how far it is."""
        self.done = whole(event, "update") or whole(event, "done")
        spent = event.at - self.began
        pace = spent / self.done * (self.total - self.done) if self.done else None
        self.left = number(event, "eta_s") if "eta_s" in event.values else pace


class _Terminal(Console):
    """A console that falls silent when its reader goes away, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True


class _Drawing(Live):
    """Its refreshes, which come from a thread, never raise."""

    def refresh(self) -> None:
        """Draw, if there still is something to draw on."""
        with contextlib.suppress(OSError, ValueError):
            super().refresh()


class LiveView:
    """A listener and a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Terminal()
        self._lock = threading.Lock()
        self._stages = [_Progress(over=True)]
        """The stage under way, above it an evaluation that runs beside it."""
        self._solved: deque[float] = deque(maxlen=WIDTH)
        self._update: Event | None = None
        self._evaluations: list[Evaluated] = []
        self._best: str | None = None
        """Label of the evaluation whose checkpoint stays; None when none does."""
        self._notes = PlainLines(lambda line: self.console.print(line, markup=False, highlight=False))
        self._live = _Drawing(console=self.console, refresh_per_second=4, transient=True, get_renderable=self._draw)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that went away cannot be tidied up
            self._live.stop()

    def emit(self, event: Event) -> None:
        """Take one event."""
        with self._lock:
            self._take(event)
        if event.name in NOTES:
            self._notes.emit(event)

    def _take(self, event: Event) -> None:
        if event.name == "stage.started":
            self._begin(event)
        elif event.name == "stage.done":
            self._end(event)
        elif event.name in ("coldstart.update", "update.done", "update.skipped", "evaluation.progress"):
            self._stages[-1].move(event)
            solved = number(event, "solved_share")
            if event.name.startswith("update.") and solved is not None and math.isfinite(solved):
                self._solved.append(solved)
            self._update = event if event.name in ("update.done", "coldstart.update") else self._update
        elif event.name == "evaluation.done":
            self._evaluations.append(Evaluated.of(event))
        elif event.name == "checkpoint.best":
            self._best = text(event, "label")

    def _begin(self, event: Event) -> None:
        fresh = _Progress(
            stage=text(event, "stage"), label=text(event, "label"), total=whole(event, "total"), began=event.at
        )
        beneath = [p for p in self._stages if not p.over] if fresh.stage == "evaluation" else []
        self._stages = [*beneath, fresh]

    def _end(self, event: Event) -> None:
        top = self._stages[-1]
        if top.stage != text(event, "stage"):
            return
        top.over = True
        if len(self._stages) > 1:
            self._stages.pop()

    def _draw(self) -> Group:
        with self._lock:
            head = Table.grid(padding=(0, 2))
            at = self._stages[-1]
            what = STAGES.get(at.stage, at.stage or "starting")
            head.add_row(
                Text(f"{what} {at.label if at.stage == 'evaluation' else ''}", style="bold"),
                ProgressBar(total=max(at.total, 1), completed=at.done, width=30),
                f"{at.done}/{at.total}", f"left {duration(at.left)}",
            )
            parts: list[Table | Text] = [head, *(Text(line) for line in self._evaluated())]
            if self._update is not None:
                parts.append(_figures(self._update))
            if self._solved:
                parts.append(Text(f"solved per update {spark(self._solved)} {self._solved[-1]:.0%}"))
            return Group(*parts)

    def _evaluated(self) -> list[str]:
        """A line for each evaluation that is shown."""
        last = len(self._evaluations) - EVALUATIONS
        shown = [e for at, e in enumerate(self._evaluations) if at >= last or e.label == self._best]
        return [f"{evaluation_line(e)}{'   best so far' if e.label == self._best else ''}" for e in shown]


def spark(values: deque[float]) -> str:
    """Shares 0..1 as a row of blocks."""
    return "".join(SPARKS[max(0, min(int(value * len(SPARKS)), len(SPARKS) - 1))] for value in values)


def _figures(event: Event) -> Table:
    table = Table.grid(padding=(0, 3))
    names = ("reward", "solved", "tok/s", "staleness", "loss", "idle: generate", "env", "score", "update")
    table.add_row(*(Text(name, style="dim") for name in names))
    table.add_row(
        amount(number(event, "reward_mean")), amount(number(event, "solved_share"), ".0%"),
        amount(number(event, "tokens_per_s"), ".0f"), amount(number(event, "staleness"), ".0f"),
        amount(number(event, "loss"), ".4f"),
        *(amount(number(event, f"{stage}_idle_share"), ".0%") for stage in ("generate", "env", "score", "update")),
    )
    return table
