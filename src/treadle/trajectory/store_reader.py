"""Reading a run: next to a live writer, after it ended, or after it was killed.

Each call reads one snapshot of the database, so what it returns is a prefix of what was appended: every segment's
parent and predecessor are there, and every leaf of a rollout.
"""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from treadle.core.errors import StoreError
from treadle.core.events import Event
from treadle.trajectory import store_rows as rows
from treadle.trajectory.group import Group, GroupKey, Rollout
from treadle.trajectory.store_schema import PLACES, database, open_reader


def read_groups(path: Path, *, split: str | None = None, newest: int | None = None) -> Iterator[Group]:
    """Groups in the order of admission; of one split if asked; only the `newest` last ones if asked."""
    with _snapshot(path) as db:
        keys = db.execute("SELECT * FROM groups WHERE ?1 IS NULL OR split = ?1 ORDER BY number", (split,)).fetchall()
        for row in keys if newest is None else keys[max(0, len(keys) - newest) :]:
            yield _group(db, row)


def read_group(path: Path, id: str) -> Group:
    """One group. Raises StoreError with the nearest ids when there is none of that id."""
    with _snapshot(path) as db:
        row = db.execute("SELECT * FROM groups WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise _unknown("group", id, path, [r[0] for r in db.execute("SELECT id FROM groups")])
        return _group(db, row)


def find_rollout(path: Path, id: str) -> tuple[Group, Rollout]:
    """One rollout and its group. Raises StoreError with the nearest ids when there is none of that id."""
    try:
        group = read_group(path, id.rsplit(".", 2)[0])
    except StoreError:
        group = None
    if group is None or id not in group.rollouts:
        raise _unknown("rollout", id, path, [rollout.id for _, rollout in read_rollouts(path)])
    return group, group.rollouts[id]


def read_keys(path: Path) -> Iterator[GroupKey]:
    """The keys of all groups in the order of admission."""
    with _snapshot(path) as db:
        yield from (rows.read_key(row) for row in db.execute("SELECT * FROM groups ORDER BY number"))


def read_rollouts(path: Path) -> Iterator[tuple[GroupKey, Rollout]]:
    """All rollouts with their group's key, without tokens."""
    with _snapshot(path) as db:
        keys = {row[0]: rows.read_key(row) for row in db.execute("SELECT * FROM groups")}
        for row in db.execute("SELECT * FROM rollouts ORDER BY number, place, attempt"):
            yield keys[row[0]], rows.read_rollout(row, keys[row[0]].id)


def read_events(path: Path, *, prefix: str = "") -> Iterator[Event]:
    """Events whose name starts with `prefix`, in the order they were told."""
    with _snapshot(path) as db:
        for row in db.execute("SELECT name, at, facts FROM events WHERE substr(name, 1, ?) = ? ORDER BY id",
                              (len(prefix), prefix)):
            yield rows.read_event(row)


def read_numbered(path: Path) -> Iterator[tuple[int, Event]]:
    """All events with their numbers, in the order they were told; nothing when there is no run yet."""
    with _snapshot(path) as db:
        for row in db.execute("SELECT id, name, at, facts FROM events ORDER BY id"):
            yield row[0], rows.read_event(row[1:])


def read_meta(path: Path) -> dict[str, str]:
    """What the run says about itself."""
    with _snapshot(path) as db:
        return dict(db.execute("SELECT key, value FROM meta"))


def copy_database(path: Path, to: Path) -> None:
    """Write a copy of a run's database, as it stands, to the new file `to`. Raises StoreError."""
    file = database(path)
    try:
        with closing(open_reader(file)) as db, closing(sqlite3.connect(to)) as copy:
            db.backup(copy)
    except sqlite3.Error as error:
        raise StoreError(f"{file} cannot be copied to {to}: {error}") from error


def _group(db: sqlite3.Connection, row: rows.Row) -> Group:
    number, key = row[0], rows.read_key(row)
    group = Group(key)
    span = (number * PLACES, (number + 1) * PLACES)
    for found in db.execute("SELECT * FROM segments WHERE key >= ? AND key < ? ORDER BY key", span):
        segment = rows.read_segment(found, key.id)
        group.segments[segment.id] = segment
    for found in db.execute("SELECT * FROM rollouts WHERE number = ? ORDER BY place, attempt", (number,)):
        rollout = rows.read_rollout(found, key.id)
        group.rollouts[rollout.id] = rollout
    for found in db.execute("SELECT * FROM rewards WHERE number = ? ORDER BY rowid", (number,)):
        group.records.append(rows.read_reward(found, key.id))
    return group


@contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    file = database(path)
    with closing(open_reader(file)) as db:
        try:
            db.execute("BEGIN")
            yield db
        except sqlite3.Error as error:
            raise StoreError(f"{file} cannot be read: {error}") from error


def _unknown(kind: str, id: str, path: Path, known: list[str]) -> StoreError:
    near = difflib.get_close_matches(id, known, n=3, cutoff=0.4)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return StoreError(f"{path} has no {kind} {id!r} among {len(known)}{hint}")
