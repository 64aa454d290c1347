"""The past: what run.db says of a run that goes on, as the loop asks for it.

A run that goes on is the same loop with the same pumps. It begins where its newest checkpoint stands and asks the past
before it does anything anew:

    admission(ticket)   which task the ticket was given, at which version: it is given the same, not before that version
    group(key)          the group as far as it was played: what ended is kept, what is missing is played on its streams
    batch(update)       which tickets the update took: it takes the same
    told(event)         whether the ledger holds the fact already: it is told as `replayed.NAME` and counted once

So updates after the checkpoint are trained again from stored segments, in the same order, by the pumps that trained
them first; nothing is generated for them, because nothing is missing in their groups. Groups are read one by one, when
they are admitted. The past of a new run is empty, and every run asks it.

A group that branches is whole when `group.branched` was told of it. One that is not is played again from its start: how
its branches divide what they may sample is settled while it grows, so that no half of it could be played on.

`Past.read` also says what has to be cleared away first: rollouts that had not ended, or that a stop gave up, of
tickets that no batch took; demonstrations and evaluations that were left in the middle. What an evaluation finished is
kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.core.errors import StoreError
from treadle.core.events import Event, Value
from treadle.core.outcome import Status
from treadle.pipeline.curriculum import Place
from treadle.trajectory.group import Group, GroupKey, Rollout, Sink
from treadle.trajectory.store import read_group, read_groups, read_keys, read_numbered, read_rollouts
from treadle.trajectory.store_remains import Remains

ONCE = {
    "coldstart.demos": "", "coldstart.update": "update", "group.admitted": "ticket", "group.ready": "ticket",
    "group.dropped": "ticket", "group.trained": "ticket", "batch.taken": "update", "update.started": "update",
    "update.done": "update", "update.skipped": "update", "rollout.done": "rollout", "breaker.opened": "group",
    "breaker.closed": "group", "weights.published": "update", "group.branched": "ticket", "branching.fell_back": "",
}
"""Facts that the ledger holds once, and what tells one from another."""
DEMONSTRATION, TICKET, FINAL = (re.compile(pattern) for pattern in (r"demo-\d+", r"t\d+", r"final-\d+"))
"""Ids of groups that were demonstrated, that were admitted, and that the last evaluation played."""
GIVEN_UP = ("cancelled", "late")
"""Reasons of groups that were dropped while they were played: by a stop or the schedule, and by the watchdog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the ledger says of an admitted ticket."""

    task: str
    """Id of its task."""
    version: int
    """Policy version that it was admitted at."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What went before. Empty for a new run."""

    path: Path | None = None
    """Run folder or database; None when there is none."""
    admissions: Mapping[int, Admission] = field(default_factory=dict)
    """By ticket."""
    batches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By number of the update: the tickets that it took, in its order."""
    given_up: Mapping[int, str] = field(default_factory=dict)
    """Tickets of those batches that the schedule or the watchdog had given up, each with its reason."""
    groups: frozenset[str] = frozenset()
    """Ids of the groups that are held."""
    facts: frozenset[tuple[str, Value]] = frozenset()
    """Names of `ONCE` with what tells one from another."""
    evaluations: Sequence[Mapping[str, Value]] = ()
    """What `evaluation.done` said."""
    branched: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)
    """By ticket: what branching did in its group, which is whole."""
    kept: int = 0
    """Rollouts that ended and that no checkpoint need hold, of tickets that no batch took."""
    again: int = 0
    """Rollouts that are played again."""

    @property
    def began(self) -> bool:
        """Whether there is one."""
        return self.path is not None

    def admission(self, ticket: int) -> Admission | None:
        """How the ticket was admitted; None when it was not."""
        return self.admissions.get(ticket)

    def batch(self, update: int) -> tuple[int, ...] | None:
        """The tickets that the update took; None when the ledger does not know."""
        return self.batches.get(update)

    def group(self, key: GroupKey, sink: Sink | None) -> Group:
        """The group as far as it was played, or a new one. Raises StoreError when another one has that id."""
        if self.path is None or key.id not in self.groups:
            return Group(key, sink=sink)
        held = read_group(self.path, key.id)
        if held.key != key:
            raise StoreError(f"{self.path}: group {key.id} is of another task or version, got {held.key}, not {key}")
        return held if sink is None else held.onward(sink)

    def demonstrations(self) -> list[Group] | None:
        """What was demonstrated, in the order of the task numbers; None unless all of it was."""
        if self.path is None or ("coldstart.demos", None) not in self.facts:
            return None
        found = [group for group in read_groups(self.path) if DEMONSTRATION.fullmatch(group.key.id)]
        return sorted(found, key=lambda group: group.key.ticket)

    def told(self, name: str, values: Mapping[str, Value]) -> bool:
        """Whether the ledger holds this fact already."""
        return name in ONCE and (name, values.get(ONCE[name])) in self.facts

    @classmethod
    def read(cls, path: Path, *, updates: int, trees: bool = False) -> tuple[Past, Remains]:
        """The past of a run of so many updates, and what has to be cleared away first. Raises StoreError.

        `trees` says that its groups branch: one that is not whole is played again from its start.
        """
        events = list(read_numbered(path))
        if not events:
            return cls(), Remains()
        return _Reading(path, events, updates, trees=trees).result()


class _Reading:
    """Sorts out what a ledger says."""

    def __init__(
        self, path: Path, events: Sequence[tuple[int, Event]], updates: int, *, trees: bool = False
    ) -> None:
        self.path = path
        self.updates = updates
        self.trees = trees
        self.events: defaultdict[str, list[tuple[int, Event]]] = defaultdict(list)
        for number, event in events:
            self.events[event.name].append((number, event))
        self.batches = {
            int(v["update"]): tuple(int(t) for t in str(v["tickets"]).split(",")) for v in self.values("batch.taken")
        }
        self.taken = {ticket for batch in self.batches.values() for ticket in batch}
        self.rollouts: defaultdict[str, list[Rollout]] = defaultdict(list)
        for key, rollout in read_rollouts(path):
            self.rollouts[key.id].append(rollout)
        self.keys = {key.id: key for key in read_keys(path)}
        self.admissions = self._admissions()
        self.length = next((v["updates"] for v in reversed(self.values("run.started") + self.values("run.resumed"))), 0)
        """Updates of the run as it was."""

    def values(self, name: str) -> list[Mapping[str, Any]]:
        """What all events of this name said."""
        return [event.values for _, event in self.events[name]]

    def result(self) -> tuple[Past, Remains]:
        """The past and its remains."""
        open_tickets = {key.id for key in self.keys.values() if self._open(key)}
        felled = self._felled(open_tickets)
        halves = {
            rollout.id: group for group in open_tickets | self._evaluated() for rollout in self.rollouts[group]
            if rollout.outcome is None or rollout.outcome.status is Status.CANCELLED
        }
        whole = self._whole() | felled
        halves = {rollout: group for rollout, group in halves.items() if group not in whole}
        replayed = {self.keys[group].ticket for group in {*halves.values(), *felled} if group in open_tickets}
        cut = {rollout.id for group in felled for rollout in self.rollouts[group]}
        gone = self._gone(set(halves) | cut, replayed)
        retold, renamed, evaluations = self._finals()
        facts = {
            (name, event.values.get(key)) for name, key in ONCE.items() for number, event in self.events[name]
            if number not in gone
        }
        past = Past(
            path=self.path, admissions=self.admissions, batches=self.batches,
            given_up={
                v["ticket"]: v["reason"] for v in self.values("group.dropped")
                if v["reason"] in GIVEN_UP and v["ticket"] in self.taken
            },
            groups=frozenset(renamed.get(id, id) for id in set(self.keys) - whole), facts=frozenset(facts),
            evaluations=evaluations, branched={int(v["ticket"]): _branched(v) for v in self.values("group.branched")},
            kept=sum(r.id not in halves for group in open_tickets - felled for r in self.rollouts[group]),
            again=len(halves) + len(cut),
        )
        remains = Remains(
            groups=tuple(sorted(whole)), rollouts=tuple((group, id) for id, group in halves.items()),
            events=tuple(sorted(gone)), retold=retold, renamed=renamed,
        )
        return past, remains

    def _open(self, key: GroupKey) -> bool:
        return TICKET.fullmatch(key.id) is not None and key.ticket not in self.taken

    def _felled(self, open_tickets: set[str]) -> set[str]:
        """Groups that branch, of tickets that no batch took, which were not played to their end."""
        whole = {v["ticket"] for v in self.values("group.branched")}
        return {group for group in open_tickets if self.trees and self.keys[group].ticket not in whole}

    def _evaluated(self) -> set[str]:
        """Groups of evaluations, which are neither admitted nor demonstrated."""
        return {id for id in self.keys if not (TICKET.fullmatch(id) or DEMONSTRATION.fullmatch(id))}

    def _admissions(self) -> dict[int, Admission]:
        return {
            v["ticket"]: Admission(
                task=v["task"], version=v["version"],
                place=Place(number=v["number"], cursor=v["cursor"], skipped=v["skipped_tasks"]),
            )
            for v in self.values("group.admitted")
        }

    def _whole(self) -> set[str]:
        """Groups that go whole: never admitted, demonstrated in vain, or of a final evaluation that is none."""
        demos, final = not self.events["coldstart.demos"], self.length != self.updates and not self._done("final")
        return {
            id for id, key in self.keys.items()
            if (TICKET.fullmatch(id) and key.ticket not in self.admissions)
            or (demos and DEMONSTRATION.fullmatch(id)) or (final and FINAL.fullmatch(id))
        }

    def _done(self, label: str) -> bool:
        return any(v["label"] == label for v in self.values("evaluation.done"))

    def _gone(self, rollouts: set[str], tickets: set[int]) -> set[int]:
        """Events about what is played again."""
        ended = {n for n, e in self.events["rollout.done"] if e.values["rollout"] in rollouts}
        judged = {
            n for name in ("group.ready", "group.dropped") for n, e in self.events[name]
            if e.values["ticket"] in tickets
            or (e.values["ticket"] not in self.taken and e.values.get("reason") in GIVEN_UP)
        }
        return ended | judged

    def _finals(self) -> tuple[dict[int, Event], dict[str, str], list[Mapping[str, Value]]]:
        """A final evaluation of a run that was shorter is from now on the one after its last update."""
        retold: dict[int, Event] = {}
        renamed: dict[str, str] = {}
        found: list[Mapping[str, Value]] = []
        for number, event in self.events["evaluation.done"]:
            values = dict(event.values)
            if values["label"] == "final" and self.length != self.updates:
                label = values["label"] = f"update-{values['update']}"
                retold[number] = replace(event, values=values)
                renamed |= {g: f"{label}-{g.rpartition('-')[2]}" for g in self.keys if FINAL.fullmatch(g)}
            found.append(values)
        for number, event in self.events["checkpoint.best"]:
            if event.values["label"] == "final" and self.length != self.updates:
                retold[number] = replace(event, values={**event.values, "label": f"update-{event.values['update']}"})
        return retold, renamed, found


def _branched(values: Mapping[str, Value]) -> dict[str, Value]:
    """What `group.branched` says, without which group it is."""
    return {key: value for key, value in values.items() if key not in ("group", "ticket")}
