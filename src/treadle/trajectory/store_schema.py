"""The tables of run.db, and how a connection to it is opened.

One file per run. A group has a number; a segment's key is that number and its place in the group, so a group's
segments lie together, no second index is needed, and parents are small integers. Ids of segments and rollouts are
kept as what follows the group's id. The only order that matters, appending, is the order of the keys.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from treadle.core.errors import StoreError

VERSION = 2
OLDER = 1
"""Schema that is still read: its rollouts know no forks. Who writes to such a file brings it up to date."""
PLACES = 1 << 20
"""Most segments of one group."""

TABLES = """
CREATE TABLE groups(number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, ticket INTEGER, task TEXT, family TEXT,
    split TEXT, admitted_version INTEGER);
CREATE TABLE segments(key INTEGER PRIMARY KEY, rollout TEXT, author TEXT, ids BLOB, parent INTEGER, after INTEGER,
    turn INTEGER, logprobs BLOB, entropy BLOB, versions TEXT, kv_version INTEGER, agent TEXT, why TEXT, spans TEXT,
    state_key TEXT, snapshot TEXT, tier TEXT);
CREATE TABLE rollouts(number INTEGER, tail TEXT, place INTEGER, attempt INTEGER, leaves TEXT, status TEXT, origin TEXT,
    type TEXT, message TEXT, reward REAL, rewards TEXT, seconds TEXT, forked_from TEXT, forked_at INTEGER,
    probe INTEGER, PRIMARY KEY(number, tail)) WITHOUT ROWID;
CREATE TABLE rewards(number INTEGER, rollout TEXT, segment INTEGER, name TEXT, value REAL, train INTEGER);
CREATE INDEX rewards_by_group ON rewards(number);
CREATE TABLE events(id INTEGER PRIMARY KEY, name TEXT, at REAL, facts TEXT);
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""

UPGRADE = """
ALTER TABLE rollouts ADD COLUMN forked_from TEXT;
ALTER TABLE rollouts ADD COLUMN forked_at INTEGER;
ALTER TABLE rollouts ADD COLUMN probe INTEGER;
"""


def database(path: Path) -> Path:
    """The database file of a run folder; a path that ends in .db is that file."""
    return path if path.suffix == ".db" else path / "run.db"


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes; makes the tables of a new file, and what an older one lacks. Raises StoreError."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        held = _version(db, path)
        if held != VERSION:
            change = UPGRADE if held == OLDER else TABLES
            db.executescript(f"BEGIN IMMEDIATE; {change} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, next to a writer or after one was killed. Raises StoreError."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist: not a run folder")
    left_wal = Path(f"{path}-wal").exists()
    frozen = "" if left_wal or os.access(path.parent, os.W_OK) else "&immutable=1"
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{frozen}", uri=True, isolation_level=None, timeout=30)
        if not _version(db, path):
            db.close()
            raise StoreError(f"{path} holds no run yet")
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return db


def _version(db: sqlite3.Connection, path: Path) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, OLDER, VERSION):
        db.close()
        raise StoreError(f"{path} has schema {version}, this Treadle reads schemas {OLDER} and {VERSION}")
    return version
