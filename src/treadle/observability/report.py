"""The report of a run: report.md with a learning curve, written at the end from the events that were heard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.core.events import Event
from treadle.observability import tables
from treadle.observability.facts import Evaluated, amount, duration, number, taped, text, whole
from treadle.observability.lines import relief_line, took_back, watchdog_line

if TYPE_CHECKING:  # drawing loads it
    from matplotlib.figure import Figure

STEPS = (("untouched", "untouched"), ("coldstart", "cold start"), ("final", "after RL"))
"""Labels of the three evaluations that every report compares, and how they are called."""
ACTS = 20
"""Acts of the watchdog, and for want of memory, that a report lists."""


class Report:
    """Listens, then writes."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluated] = []
        self._started: Event | None = None
        self._ends: list[Event] = []
        """One for each sitting of a run that was interrupted; a sitting that was killed has none."""
        self._best: Event | None = None
        """The last `checkpoint.best`."""
        self._took_back: Event | None = None
        """`run.took_back`: the run ends with an earlier version."""
        self._updates: list[Event] = []
        self._dropped: dict[str, int] = {}
        self._endings: dict[str, int] = {}
        self._acts: list[str] = []
        self._relief: list[str] = []
        self._stages: dict[str, float] = {}

    def emit(self, event: Event) -> None:
        """Take one event."""
        if event.name in ("run.started", "run.resumed"):
            self._started = event
        elif event.name in ("run.done", "run.failed"):
            self._ends.append(event)
        elif event.name == "evaluation.done":
            self.evaluations.append(Evaluated.of(event))
        elif event.name == "checkpoint.best":
            self._best = event
        elif event.name == "run.took_back":
            self._took_back = event
        elif event.name in ("update.done", "update.skipped"):
            self._updates.append(event)
        elif event.name == "group.dropped":
            self._dropped[text(event, "reason")] = self._dropped.get(text(event, "reason"), 0) + 1
        elif event.name == "rollout.done" and text(event, "split") == "train":
            ending = f"{text(event, 'status')}, {text(event, 'origin')}"
            self._endings[ending] = self._endings.get(ending, 0) + 1
        elif event.name == "watchdog.acted":
            self._acts.append(watchdog_line(event))
        elif event.name == "memory.relieved":
            self._relief.append(relief_line(event))
        elif event.name == "stage.done":
            stage = text(event, "stage")
            self._stages[stage] = self._stages.get(stage, 0.0) + (number(event, "seconds_s") or 0.0)

    @property
    def started(self) -> bool:
        """Whether there is a run to report."""
        return self._started is not None

    def summary(self) -> list[str]:
        """Untouched, cold start, after RL, a line each where it was evaluated; the best where it is none of them."""
        held = {found.label: found for found in self.evaluations}
        lines = [f"{name:<10} solved {held[label].overall}" for label, name in STEPS if label in held]
        best = "" if self._best is None else text(self._best, "label")
        if best in held and best not in dict(STEPS):
            lines.append(f"{'best':<10} solved {held[best].overall}, {best}")
        return lines

    def write(self, folder: Path) -> Path:
        """Write report.md and, after reinforcement learning, learning-curve.png. Returns the report's path."""
        lines = [
            *self._head(), *self._tables(), *self._watchdog(), *self._curve(folder), *self._course(),
            *self._updates_table(),
        ]
        path = folder / "report.md"
        path.write_text("\n".join(lines) + "\n", "utf-8", "backslashreplace")
        return path

    # -- parts -------------------------------------------------------------------------------------------------

    def _head(self) -> list[str]:
        lines = ["# Run report", ""]
        if self._started is not None:
            e = self._started
            lines += [
                f"Run `{text(e, 'run')}`, recipe `{text(e, 'recipe')}`, model `{text(e, 'model')}`, "
                f"seed {text(e, 'seed')}, lag {text(e, 'lag')}, staleness bound {text(e, 'max_staleness')}.", "",
            ]
        if self._ends:
            e = self._ends[-1]
            memory = amount(number(e, "peak_rss_gb"), ".1f")
            how = text(e, "reason") or f"{text(e, 'type')}: {text(e, 'message')}"
            lines += [
                f"Ended: {how} after {duration(number(e, 'seconds_s'))}, peak memory {memory} GB. "
                + " ".join(f"{stage}: {duration(seconds)}." for stage, seconds in self._stages.items()), "",
            ]
        if tape := taped(self._ends):
            lines += [f"{tape[0].upper()}{tape[1:]}.", ""]
        trained = [event for event in self._updates if event.name == "update.done"]
        if self._updates and not trained:
            lines += [
                f"Reinforcement learning changed nothing: all {len(self._updates)} batches were empty, because no "
                "group was left that could teach something; why they were dropped stands below.", "",
            ]
        return lines

    def _tables(self) -> list[str]:
        lines: list[str] = []
        if self.evaluations:
            lines += ["## Held-out tasks", ""]
            lines += ["| evaluation | solved | share | 95 % interval | by level |", "|---|---|---|---|---|"]
        for found in self.evaluations:
            levels = ", ".join(f"{name} {s}/{t}" for name, (s, t) in found.levels.items())
            o = found.overall
            lines.append(
                f"| {cell(found.label)} | {o.solved}/{o.total} | {o.share:.3f} | {o.low:.3f} to {o.high:.3f} "
                f"| {cell(levels)} |"
            )
        if self.evaluations:
            temperature = amount(self.evaluations[0].temperature, "g")
            lines += ["", f"Decoding at temperature {temperature}, one rollout per task.", *self._kept()]
            lines += ["", *self._families()]
        masked = tables.tally(self._updates, "masked.")
        if self._endings or self._dropped or masked:
            lines += ["", "## Where rollouts and groups went", "", "| what | count |", "|---|---|"]
            lines += [f"| rollouts that ended {ending} | {count} |" for ending, count in sorted(self._endings.items())]
            lines += [f"| rollouts left out of training: {cell(why)} | {count} |" for why, count in masked.items()]
            lines += [f"| groups dropped: {reason} | {count} |" for reason, count in sorted(self._dropped.items())]
            too_old = sum(whole(event, "stale_tokens") for event in self._updates)
            lines += [f"| tokens too old to train | {too_old} |"] if too_old else []
        return lines

    def _course(self) -> list[str]:
        return [*tables.branching(self._updates), *tables.curriculum(self._updates), *tables.ages(self._updates)]

    def _watchdog(self) -> list[str]:
        """What waited too long or was too large, and what was done about it; nothing for a run that needed nothing."""
        lines: list[str] = []
        for title, acts in (("What the watchdog did", self._acts), ("Where memory ran short", self._relief)):
            if acts:
                more = [f"- and {len(acts) - ACTS} more"] if len(acts) > ACTS else []
                lines += ["", f"## {title}", "", *(f"- {cell(line)}" for line in acts[:ACTS]), *more]
        return lines

    def _kept(self) -> list[str]:
        """Which checkpoint was kept as the best."""
        if self._best is None:
            return []
        e = self._best
        return [
            "", f"Best: version {text(e, 'version')} at update {text(e, 'update')} (`{text(e, 'label')}`, "
            f"{text(e, 'solved')}/{text(e, 'total')}); its checkpoint is kept.",
            *([] if self._took_back is None else ["", f"At the end: {took_back(self._took_back)}."]),
        ]

    def _families(self) -> list[str]:
        last = self.evaluations[-1].families
        if not last:
            return []
        shown = [found for found in self.evaluations if found.families]
        lines = [
            "| family | " + " | ".join(cell(found.label) for found in shown) + " |", "|---|" + "---|" * len(shown),
        ]
        for name in last:
            cells = [f"{s}/{t}" for s, t in (found.families.get(name, (0, 0)) for found in shown)]
            lines.append(f"| {cell(name)} | " + " | ".join(cells) + " |")
        return lines

    def _updates_table(self) -> list[str]:
        if not self._updates:
            return []
        keys = (
            ("reward_mean", ".3f"), ("solved_share", ".2f"), ("loss", ".4f"), ("grad_norm", ".2f"),
            ("staleness", ".0f"), ("tokens_trained", ".0f"), ("tokens_per_s", ".0f"),
            ("generate_idle_share", ".2f"), ("env_idle_share", ".2f"), ("score_idle_share", ".2f"),
            ("update_idle_share", ".2f"), ("seconds_s", ".1f"),
        )
        lines = ["", "## Updates", ""]
        lines += ["| update | " + " | ".join(key for key, _ in keys) + " |", "|---|" + "---|" * len(keys)]
        for event in self._updates:
            cells = " | ".join(amount(number(event, key), form) for key, form in keys)
            lines.append(f"| {text(event, 'update')} | {cells} |")
        empty = any(event.name == "update.skipped" for event in self._updates)
        return [*lines, "", "`-`: the batch was empty, the weights stayed as they were."] if empty else lines

    def _curve(self, folder: Path) -> list[str]:
        points = [(number(e, "update"), number(e, "solved_share")) for e in self._updates]
        if not points:
            return []
        self._figure(points).savefig(folder / "learning-curve.png", dpi=120)
        return ["", "## Learning curve", "", "![Solved share per update](learning-curve.png)"]

    def _figure(self, points: Sequence[tuple[float | None, float | None]]) -> Figure:
        """Training tasks as a line, every evaluation as a point with its interval, the best one ringed."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        drawn = [(x, y) for x, y in points if x is not None and y is not None]
        axes.plot([x for x, _ in drawn], [y for _, y in drawn], color="tab:blue", label="training tasks, per update")
        held = [f for f in self.evaluations if f.label != "untouched"]
        if held:
            shares = [f.overall.share for f in held]
            errors = (
                [max(0.0, f.overall.share - f.overall.low) for f in held],
                [max(0.0, f.overall.high - f.overall.share) for f in held],
            )
            axes.errorbar(
                [f.update for f in held], shares, yerr=errors, fmt="o", color="tab:red", capsize=4,
                label="held-out tasks, 95 % interval",
            )
        best = [f for f in held if self._best is not None and f.label == text(self._best, "label")]
        if best:
            axes.plot(
                [f.update for f in best], [f.overall.share for f in best], "o", markersize=12, markerfacecolor="none",
                markeredgecolor="tab:red", label="best, its checkpoint is kept",
            )
        axes.set(xlabel="update", ylabel="solved share", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        return figure


def cell(text: str) -> str:
    """Text that stays inside its cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
