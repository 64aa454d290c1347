"""Remains: what a killed or stopped run left half done, and how it is taken out of run.db.

A rollout that did not end is played again from its start, on the same streams and under the same ids. So its segments,
rewards and events must be gone first: after a resume the database reads like that of a run that was never disturbed.
Everything goes in one transaction, before anything new is appended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from treadle.core.events import Event
from treadle.trajectory import store_rows as rows
from treadle.trajectory.store_schema import PLACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What goes, and what is called otherwise from now on."""

    groups: tuple[str, ...] = ()
    """Ids of groups that go whole."""
    rollouts: tuple[tuple[str, str], ...] = ()
    """(group id, rollout id) of rollouts that go; none of them is the start of another one."""
    events: tuple[int, ...] = ()
    """Numbers of events that go."""
    retold: Mapping[int, Event] = field(default_factory=dict)
    """Event number to what stands there from now on."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Group id to its new one; ids of segments and rollouts follow."""

    def __bool__(self) -> bool:
        return bool(self.groups or self.rollouts or self.events or self.retold or self.renamed)


def clear(db: sqlite3.Connection, remains: Remains) -> None:
    """Take it out, inside the caller's transaction."""
    for group, rollout in remains.rollouts:
        _drop_rollout(db, group, rows.tail(rollout, group))
    for group in remains.groups:
        _drop_group(db, group)
    db.executemany("DELETE FROM events WHERE id = ?", [(number,) for number in remains.events])
    for number, event in remains.retold.items():
        db.execute("UPDATE events SET name = ?, at = ?, facts = ? WHERE id = ?", (*rows.event_row(event), number))
    db.executemany("UPDATE groups SET id = ? WHERE id = ?", [(new, old) for old, new in remains.renamed.items()])


def _drop_rollout(db: sqlite3.Connection, group: str, tail: str) -> None:
    number = _number(db, group)
    span = (tail, number * PLACES, (number + 1) * PLACES)
    db.execute("DELETE FROM segments WHERE rollout = ? AND key >= ? AND key < ?", span)
    db.execute("DELETE FROM rewards WHERE number = ? AND rollout = ?", (number, tail))
    db.execute("DELETE FROM rollouts WHERE number = ? AND tail = ?", (number, tail))


def _drop_group(db: sqlite3.Connection, group: str) -> None:
    number = _number(db, group)
    db.execute("DELETE FROM segments WHERE key >= ? AND key < ?", (number * PLACES, (number + 1) * PLACES))
    for table in ("rewards", "rollouts", "groups"):
        db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))


def _number(db: sqlite3.Connection, group: str) -> int:
    return int(db.execute("SELECT number FROM groups WHERE id = ?", (group,)).fetchone()[0])
