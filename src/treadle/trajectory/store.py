"""The trajectory store: one SQLite file per run, written by one thread.

    event loop --append--> pending rows (bounded) --swap--> writer thread --one transaction--> run.db (WAL)

Appending never blocks and never touches the disk: it puts a record under a lock that the writer holds only while it
takes everything that waits. The writer wakes on the first row, lingers a moment so that rows share a transaction,
and commits them in the order of appending. So what survives a kill at any moment is a prefix of what was appended: a
forest without orphans.

Who waits for whom: `settle()` and `room()` wait for the writer, with a deadline; the writer wakes them after each
commit. The writer waits for rows only. Nobody waits for a reader: WAL lets them read beside the writer.

Memory is bounded in two steps. Past the soft bound `room()` waits: whoever starts work awaits it first. Past the hard
bound, where somebody appends without asking for room while the disk stands still, appending raises StoreError.

The first failure of the writer (disk full, file gone) is final: what was committed stays intact, later appends and
waits raise it. A lock file keeps a second writer away from the same run; the system frees it when a process dies.

`synchronous=NORMAL`: a committed row survives the death of the process; after a power cut the last transactions may
be missing, still as a prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from treadle.core.errors import DeadlineExceeded, StoreError
from treadle.core.events import Event, Value
from treadle.core.ports import Clock, Statistics
from treadle.trajectory import store_rows as rows
from treadle.trajectory.group import GroupKey, RewardRecord, Rollout
from treadle.trajectory.segment import Segment
from treadle.trajectory.store_reader import (
    find_rollout,
    read_events,
    read_group,
    read_groups,
    read_keys,
    read_meta,
    read_numbered,
    read_rollouts,
)
from treadle.trajectory.store_remains import Remains, clear
from treadle.trajectory.store_schema import database, open_writer

__all__ = [
    "StoreBounds", "TrajectoryStore", "database", "find_rollout", "read_events", "read_group", "read_groups",
    "read_keys", "read_meta", "read_numbered", "read_rollouts",
]

Record = Segment | RewardRecord | Rollout | GroupKey | Event | Remains | tuple[str, str]

LINGER_S = 0.01
"""How long the writer waits for more rows before it commits, unless somebody waits for it."""
IDLE_S = 1.0
"""How often a writer without rows looks whether it should go on."""
ENOUGH_ROWS = 500
"""So many waiting records end the linger."""
FOLD_MS = 1000
"""How long the end of a run waits for readers that hold the database, in milliseconds."""

INSERT = {
    Segment: f"INSERT INTO segments VALUES({', '.join('?' * 17)})",
    RewardRecord: "INSERT INTO rewards VALUES(?, ?, ?, ?, ?, ?)",
    Rollout: f"INSERT OR REPLACE INTO rollouts VALUES({', '.join('?' * 15)})",
    GroupKey: "INSERT INTO groups VALUES(?, ?, ?, ?, ?, ?, ?)",
    Event: "INSERT INTO events(name, at, facts) VALUES(?, ?, ?)",
    tuple: "INSERT OR REPLACE INTO meta VALUES(?, ?)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBounds:
    """How much may wait for the disk."""

    soft_bytes: int = 32 << 20
    """Above this `room()` waits."""
    hard_bytes: int = 256 << 20
    """Above this appending raises StoreError."""


class TrajectoryStore:
    """Writes a run's groups, segments, rewards, rollouts and events. A `Sink` and a `Listener`; any thread may append.

    Raises StoreError when the run cannot be written: no such folder, read-only, another process on the same run.
    """

    def __init__(self, path: Path, *, clock: Clock, bounds: StoreBounds | None = None) -> None:
        self.path = database(path)
        self._clock = clock
        self._bounds = bounds or StoreBounds()
        self._lock = _claim(self.path)
        try:
            self._db = open_writer(self.path)
            self._numbers: dict[str, int] = {}
            self._learn_numbers()
        except BaseException:  # whatever went wrong, the run must not stay locked
            self._lock.close()
            raise
        self._changed = threading.Condition()
        self._pending: list[tuple[Record, int]] = []
        self._pending_bytes = 0
        self._appended = 0
        self._committed = 0
        self._transactions = 0
        self._write_s = 0.0
        self._waiters: list[tuple[int, futures.Future[None]]] = []
        self._failure: StoreError | None = None
        self._closing = False
        self._writer = threading.Thread(target=self._run, name="treadle-store", daemon=True)
        self._writer.start()

    # -- appending ---------------------------------------------------------------------------------------------

    def segment(self, segment: Segment) -> None:
        """Take one segment."""
        self._append(segment, 400 + 12 * len(segment))

    def reward(self, record: RewardRecord) -> None:
        """Take one reward record."""
        self._append(record)

    def rollout(self, rollout: Rollout) -> None:
        """Take the newest state of a rollout; it replaces the one before."""
        self._append(rollout)

    def group(self, key: GroupKey) -> None:
        """Take a new group."""
        self._append(key)

    def event(self, name: str, values: Mapping[str, Value] | None = None) -> None:
        """Take one event that happens now. Raises StoreError where `emit` would stay silent."""
        self._append(Event(name=name, at=self._clock.wall(), values=values or {}))

    def emit(self, event: Event) -> None:
        """Take one event as a `Listener`: never raises. A failed store shows itself to those who append or wait."""
        with contextlib.suppress(StoreError):
            self._append(event)

    def meta(self, key: str, value: str) -> None:
        """Take a fact about the whole run; it replaces the one before."""
        self._append((key, value))

    def clear(self, remains: Remains, *, timeout_s: float = 600.0) -> None:
        """Take out what an earlier process left half done; returns when that is committed. Before anything else."""
        if remains:
            self._append(remains)
            self.flush(timeout_s=timeout_s)

    # -- waiting -----------------------------------------------------------------------------------------------

    async def settle(self, *, timeout_s: float = 60.0) -> None:
        """Wait until everything appended so far is committed. Raises StoreError, DeadlineExceeded."""
        await self._wait("store.settle", self._appended, timeout_s)

    async def room(self, *, timeout_s: float = 60.0) -> None:
        """Wait until less than the soft bound waits for the disk. Raises StoreError, DeadlineExceeded."""
        while self._pending_bytes > self._bounds.soft_bytes:
            await self._wait("store.room", self._committed + 1, timeout_s)

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """`settle` for code without an event loop."""
        try:
            self._reach(self._appended).result(timeout_s)
        except TimeoutError:
            raise self._late("store.flush", timeout_s) from None

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Commit what waits, fold the WAL into the file, free the run. Raises StoreError if rows were lost."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            raise self._late("store.close", timeout_s)
        self._lock.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> TrajectoryStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except StoreError:
            if error is None:  # else the error under way is the one to show
                raise

    def statistics(self) -> Statistics:
        """What waits, what was written, how long writing took."""
        with self._changed:
            return Statistics(values={
                "pending_rows": self._appended - self._committed, "pending_bytes": self._pending_bytes,
                "written_rows": self._committed, "transactions": self._transactions, "write_s": self._write_s,
            })  # fmt: skip

    # -- inside, caller's side ---------------------------------------------------------------------------------

    def _append(self, record: Record, size: int = 400) -> None:
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise StoreError(f"{self.path} was closed and takes nothing more")
            if self._pending_bytes > self._bounds.hard_bytes:
                raise StoreError(
                    f"{self.path}: {self._pending_bytes >> 20} MB wait for the disk, at most "
                    f"{self._bounds.hard_bytes >> 20} may: the disk is too slow or stands still"
                )
            self._pending.append((record, size))
            self._pending_bytes += size
            self._appended += 1
            if len(self._pending) in (1, ENOUGH_ROWS):
                self._changed.notify()

    def _reach(self, target: int) -> futures.Future[None]:
        """Done when `target` records are committed."""
        future: futures.Future[None] = futures.Future()
        with self._changed:
            if self._failure is not None:
                future.set_exception(self._failure)
            elif self._committed >= target:
                future.set_result(None)
            else:
                self._waiters.append((target, future))
                self._changed.notify()
        return future

    async def _wait(self, name: str, target: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(self._reach(target))
        except TimeoutError:
            raise self._late(name, timeout_s) from None

    def _late(self, name: str, timeout_s: float) -> DeadlineExceeded:
        waiting = self._appended - self._committed
        return DeadlineExceeded(f"{name}: {waiting} records still wait for {self.path} after {timeout_s:g} s")

    # -- inside, writer's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while batch := self._take():
                begun = time.perf_counter()
                self._commit([record for record, _ in batch])
                self._write_s += time.perf_counter() - begun
                self._finish(len(batch), sum(size for _, size in batch))
            with contextlib.suppress(sqlite3.Error):  # rows that cannot be folded in now stay safe in the WAL
                self._db.execute(f"PRAGMA busy_timeout = {FOLD_MS}")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except Exception as error:  # the writer's boundary: any error must reach those who wait, or they wait forever
            self._fail(error)
        finally:
            self._db.close()

    def _take(self) -> list[tuple[Record, int]]:
        """The next batch; empty when the store closes and nothing is left."""
        with self._changed:
            while not self._pending and not self._closing:
                self._changed.wait(IDLE_S)
            if not (self._closing or self._waiters or len(self._pending) >= ENOUGH_ROWS):
                self._changed.wait(LINGER_S)
            batch, self._pending = self._pending, []
            return batch

    def _commit(self, batch: list[Record]) -> None:
        """One transaction. Order between tables does not matter inside it; of a rollout the last state counts."""
        tables: dict[type, list[rows.Row]] = {}
        newest: dict[str, Rollout] = {}
        for record in batch:
            if isinstance(record, Rollout):
                newest[record.id] = record
            elif not isinstance(record, Remains):
                tables.setdefault(type(record), []).append(self._row(record))
        if newest:
            tables[Rollout] = [rows.rollout_row(r, self._number(r.group)) for r in newest.values()]
        self._db.execute("BEGIN IMMEDIATE")
        for remains in (record for record in batch if isinstance(record, Remains)):
            clear(self._db, remains)
            self._learn_numbers()
        for kind, found in tables.items():
            self._db.executemany(INSERT[kind], found)
        self._db.execute("COMMIT")

    def _row(self, record: Record) -> rows.Row:
        match record:
            case Segment():
                return rows.segment_row(record, self._number(record.group))
            case RewardRecord():
                group = record.segment.rpartition(":")[0]
                return rows.reward_row(record, group, self._number(group))
            case GroupKey():
                if record.id not in self._numbers:
                    self._numbers[record.id] = self._next_number
                    self._next_number += 1
                return rows.group_row(record, self._numbers[record.id])
            case Event():
                return rows.event_row(record)
            case _:
                assert isinstance(record, tuple)
                return record

    def _learn_numbers(self) -> None:
        self._numbers = dict(self._db.execute("SELECT id, number FROM groups"))
        self._next_number = 1 + max(self._numbers.values(), default=-1)

    def _number(self, group: str) -> int:
        if group not in self._numbers:
            raise StoreError(f"{self.path}: group {group} must be appended before what belongs to it")
        return self._numbers[group]

    def _finish(self, count: int, size: int) -> None:
        with self._changed:
            self._committed += count
            self._transactions += 1
            self._pending_bytes -= size
            ready = [future for target, future in self._waiters if target <= self._committed]
            self._waiters = [w for w in self._waiters if w[0] > self._committed]
        for future in ready:
            _wake(future, None)

    def _fail(self, error: Exception) -> None:
        remedy = "; free some disk space or set runs=FOLDER" if "is full" in str(error) else ""
        fresh = StoreError(f"{self.path} cannot be written: {error}{remedy}")
        failure = error if isinstance(error, StoreError) else fresh
        with self._changed:
            self._failure = failure
            self._pending, self._pending_bytes = [], 0
            waiting, self._waiters = self._waiters, []
        for _, future in waiting:
            _wake(future, failure)


def _wake(future: futures.Future[None], error: StoreError | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _claim(path: Path) -> IO[str]:
    """Hold the run's lock file for as long as the returned file is open. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(f"{path}.lock", "a+", encoding="utf-8")  # noqa: SIM115  held until close()
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StoreError(f"{path} is being written by another process (pid {holder}); wait for it or stop it") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
