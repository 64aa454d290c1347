"""The branching experiment's figures, recomputed from stored rollouts.

Tokens are counted segment by segment: everything that the policy sampled for a ticket, failed attempts and probes
included, and the looks that a branching policy took, which are told as events. What was sampled for evaluations counts
for no arm. Success is counted from the held-out rollouts themselves. Seconds are those of the updates, without the
evaluations between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.main_job import pooled, said
from treadle.core.events import Event
from treadle.pipeline.evaluation import Count
from treadle.pipeline.ledger import sampled_tokens
from treadle.trajectory.store import read_events, read_group, read_rollouts

PARTS = 4
"""The budget is shown in so many equal steps."""
MAIN = "correct"
"""The part of a score that says whether a task was solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation."""

    label: str
    update: int
    tokens: int
    """Sampled for training until then."""
    seconds: float
    """Of training until then."""
    played: int
    """Tasks."""
    count: Count
    """Solved, of those that could be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One arm on one seed."""

    points: tuple[Point, ...]
    """In the order of the updates; the first before any."""
    tokens: int
    """Sampled for training, in all."""

    @classmethod
    def read(cls, folder: Path) -> Played:
        """Read a finished run."""
        events = list(read_events(folder))
        tokens, seconds = _spent(folder, events), _seconds(events)
        last = max(tokens, default=0)
        points = []
        for label, (played, count) in _evaluations(folder).items():
            update = {"untouched": 0, "final": last}.get(label, -1)
            update = int(label.rpartition("-")[2]) if update < 0 else update
            points.append(Point(
                label=label, update=update, tokens=sum(n for k, n in tokens.items() if k <= update),
                seconds=sum(s for k, s in seconds.items() if k <= update), played=played, count=count,
            ))
        if not points:
            raise SystemExit(f"{folder}: it played no held-out task")
        points.sort(key=lambda point: (point.update, point.label == "final"))
        return cls(points=tuple(points), tokens=sum(tokens.values()))

    def at(self, tokens: float) -> Point:
        """The newest evaluation within so many tokens; the first where none is."""
        return [point for point in self.points if point.tokens <= tokens or point is self.points[0]][-1]


def record(played: Mapping[str, Sequence[Played]], *, budget: int) -> dict[str, object]:
    """The figures of all arms; each has the same seeds in the same order."""
    spent = [one.tokens for runs in played.values() for one in runs]
    return {
        "seeds": min(map(len, played.values())), "arms": len(played), "budget_tokens": budget,
        "tasks_per_evaluation": min(p.played for runs in played.values() for one in runs for p in one.points),
        "budget_spread": (max(spent) - min(spent)) / max(spent),
        "by_arm": {name: _arm(runs, budget) for name, runs in played.items()},
    }


def _arm(runs: Sequence[Played], budget: int) -> dict[str, object]:
    steps = [budget * part // PARTS for part in range(PARTS)]
    return {
        "tokens": [one.tokens for one in runs],
        "at_tokens": [
            {"tokens": step, **said(pooled([one.at(step).count for one in runs]))} for step in steps
        ] + [{"tokens": budget, **said(pooled([one.points[-1].count for one in runs]))}],
        "final": said(pooled([one.points[-1].count for one in runs])),
        "final_by_seed": [said(one.points[-1].count) for one in runs],
        "seconds": [one.points[-1].seconds for one in runs],
        "course": [
            [{"label": p.label, "update": p.update, "tokens": p.tokens, "seconds": p.seconds, **said(p.count)}
             for p in one.points]
            for one in runs
        ],
    }


def _spent(folder: Path, events: Sequence[Event]) -> dict[int, int]:
    """Sampled tokens by update."""
    group = {e.values["ticket"]: str(e.values["group"]) for e in events if e.name == "group.admitted"}
    looks = {
        str(e.values["group"]): int(str(e.values.get("look_tokens", 0))) for e in events if e.name == "group.branched"
    }
    out: dict[int, int] = {}
    for event in events:
        if event.name == "batch.taken":
            ids = [group[int(ticket)] for ticket in str(event.values["tickets"]).split(",") if ticket]
            tokens = sum(sampled_tokens(read_group(folder, id)) + looks.get(id, 0) for id in ids)
            out[int(str(event.values["update"]))] = tokens
    return out


def _seconds(events: Sequence[Event]) -> dict[int, float]:
    """Seconds by update, without those of the evaluation before it."""
    out: dict[int, float] = {}
    evaluated = 0.0
    for event in events:
        if event.name == "evaluation.done":
            evaluated += float(str(event.values["seconds_s"]))
        elif event.name == "stage.started" and event.values.get("stage") == "rl":
            evaluated = 0.0
        elif event.name in ("update.done", "update.skipped"):
            whole = float(str(event.values.get("seconds_s", evaluated)))
            out[int(str(event.values["update"]))] = max(whole - evaluated, 0.0)
            evaluated = 0.0
    return out


def _evaluations(folder: Path) -> dict[str, tuple[int, Count]]:
    """Tasks that were played, and solved of those that could be scored, by the evaluation's label."""
    newest: defaultdict[str, dict[str, bool | None]] = defaultdict(dict)
    for key, rollout in read_rollouts(folder):
        if key.split == "heldout":
            label = key.id.rpartition("-")[0]
            if rollout.trains:
                newest[label][key.id] = rollout.rewards.get(MAIN, 0.0) >= 1.0
            else:
                newest[label].setdefault(key.id, None)
    return {
        label: (len(found), Count(sum(v is True for v in found.values()), sum(v is not None for v in found.values())))
        for label, found in newest.items()
    }
