"""The store gives back what it took, beside a writer and after failures; bad places are one clear line."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.clock import SystemClock
from treadle.core.errors import DeadlineExceeded, StoreError
from treadle.core.events import Event
from treadle.core.outcome import OK, Origin, failure
from treadle.testing.forests import hand_tree
from treadle.testing.random_forests import Growth, random_group, random_groups
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.segment import Author, Segment, Span
from treadle.trajectory.store import (
    StoreBounds,
    TrajectoryStore,
    find_rollout,
    read_events,
    read_group,
    read_groups,
    read_meta,
    read_rollouts,
)

SEEDS = st.integers(0, 2**32 - 1)
KEY = GroupKey(id="g0", ticket=0, task="t", family="f", split="train", admitted_version=0)


def opened(path: Path, bounds: StoreBounds | None = None) -> TrajectoryStore:
    return TrajectoryStore(path, clock=SystemClock(), bounds=bounds)


def same(one: Group, two: Group) -> bool:
    """Whether two groups hold the same records, arrays bit for bit."""
    columns = ("ids", "logprobs", "entropy")
    plain = [name for name in Segment.__slots__ if name not in columns]
    return (
        one.key == two.key
        and one.rollouts == two.rollouts
        and one.records == two.records
        and list(one.segments) == list(two.segments)
        and all(
            all(getattr(a, name) == getattr(b, name) for name in plain)
            and all(_bits(getattr(a, name)) == _bits(getattr(b, name)) for name in columns)
            for a, b in zip(one.segments.values(), two.segments.values(), strict=True)
        )
    )


def _bits(array: np.ndarray | None) -> tuple[str, bytes] | None:
    return None if array is None else (array.dtype.str, array.tobytes())


# -- round trips -----------------------------------------------------------------------------------------------


@given(seed=SEEDS)
def test_for_all_groups_what_is_read_is_what_was_appended(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("run")
    with opened(path) as store:
        groups = random_groups(seed, 2, Growth(demonstration=0.3, breaks=0.4), sink=store)
    assert all(same(a, b) for a, b in zip(groups, read_groups(path), strict=True))
    one, two = Forest.of(groups), Forest.of(list(read_groups(path)))
    assert one.returns.tolist() == two.returns.tolist()


def test_every_column_of_a_segment_survives(tmp_path: Path) -> None:
    full = Segment(
        id="g0:00001", group="g0", rollout="g0.0.0", author=Author.POLICY, ids=np.array([49_151, 0], np.int32),
        parent="g0:00000", after="g0:00000", turn=3, logprobs=np.array([-1e-7, -40.5], np.float32),
        entropy=np.array([0.1, 3.3], np.float32), versions=((4, 1), (5, 1)), kv_version=2, agent="scout",
        spans=(Span("code", 0, 1), Span("text", 1, 2)), state_key="abc", snapshot="s1", tier="sim",
    )  # fmt: skip
    root = Segment(
        id="g0:00000", group="g0", rollout=None, author=Author.ENV, ids=np.array([1], np.int32), parent=None, after=None
    )
    with opened(tmp_path) as store:
        held = Group(KEY, sink=store)
        for segment in (root, full):
            held.segments[segment.id] = segment
            store.segment(segment)
    assert same(held, read_group(tmp_path, "g0"))


def test_a_rollout_is_read_in_its_newest_state(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        group = Group(KEY, sink=store)
        rollout = group.begin(0).id
        store.flush()
        assert read_group(tmp_path, "g0").rollouts[rollout].outcome is None
        group.demonstrated(rollout, np.array([1], np.int32), after=group.prompt(np.array([2], np.int32)), turn=0)
        group.pay(rollout, "correct", 0.5)
        ended = group.end(rollout, OK, seconds={"env": 0.25})
    assert find_rollout(tmp_path, rollout)[1] == ended


def test_groups_can_be_picked_by_split_and_age(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for i, split in enumerate(["train", "heldout", "train", "train"]):
            Group(GroupKey(id=f"g{i}", ticket=i, task="t", family="", split=split, admitted_version=0), sink=store)
    assert [g.key.id for g in read_groups(tmp_path, split="train")] == ["g0", "g2", "g3"]
    assert [g.key.id for g in read_groups(tmp_path, newest=2)] == ["g2", "g3"]
    assert list(read_groups(tmp_path, newest=0)) == []


def test_rollouts_are_listed_without_tokens(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        group = hand_tree(sink=store).group
    assert [r for _, r in read_rollouts(tmp_path)] == list(group.rollouts.values())
    assert {key for key, _ in read_rollouts(tmp_path)} == {group.key}


def test_events_come_back_in_order_and_by_prefix(tmp_path: Path) -> None:
    told = [
        Event(name=name, at=float(i), values={"n": i, "share": 0.5, "why": "x", "ok": True, "none": None})
        for i, name in enumerate(["pipeline.group.ready", "learner.update", "pipeline.group.dropped"])
    ]
    with opened(tmp_path) as store:
        for event in told:
            store.emit(event)
    assert list(read_events(tmp_path)) == told
    assert [e.at for e in read_events(tmp_path, prefix="pipeline.group.")] == [0.0, 2.0]


def test_an_event_carries_the_clocks_time(tmp_path: Path) -> None:
    class Noon:
        def now(self) -> float:
            return 0.0

        def wall(self) -> float:
            return 43_200.0

        async def sleep(self, seconds: float) -> None:
            return None

    with TrajectoryStore(tmp_path, clock=Noon()) as store:
        store.event("run.begun")
    assert [e.at for e in read_events(tmp_path)] == [43_200.0]


def test_a_careless_word_does_not_stop_the_run(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.emit(Event(name="odd", at=0.0, values={"loss": np.float32(0.5), "n": np.int64(3), "at": tmp_path}))  # type: ignore[dict-item]
        group = Group(KEY, sink=store)
        ended = group.end(group.begin(0).id, failure(Origin.ENV, OSError("bad \ud800 name\x00")))
    assert [e.values for e in read_events(tmp_path)] == [{"loss": 0.5, "n": 3, "at": str(tmp_path)}]
    found = find_rollout(tmp_path, ended.id)[1].outcome
    assert found is not None
    assert found.message == "bad \\ud800 name\x00"


def test_the_last_meta_value_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for value in ("a", "b"):
            store.meta("recipe", value)
    assert read_meta(tmp_path) == {"recipe": "b"}


def test_a_run_can_be_opened_again_and_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        random_groups(1, 2, sink=store)
    with opened(tmp_path) as store:
        random_group(np.random.default_rng(5), id="later", ticket=2, sink=store)
    assert [g.key.id for g in read_groups(tmp_path)] == ["g0", "g1", "later"]


# -- beside a writer -------------------------------------------------------------------------------------------


def test_a_reader_sees_whole_groups_while_a_writer_writes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        random_groups(3, 5, sink=store)
        store.flush()
        seen = list(read_groups(tmp_path))
        random_groups_later = [random_group(np.random.default_rng(i), id=f"h{i}", sink=store) for i in range(5)]
        assert len(seen) == 5
        store.flush()
        assert len(list(read_groups(tmp_path))) == 5 + len(random_groups_later)


def test_a_reader_that_holds_the_database_does_not_stop_the_writer(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
        store.flush()
        reader = read_groups(tmp_path)
        assert next(reader).key.id == "hand"
        store.event("x")
        store.flush(timeout_s=30)
        reader.close()
    assert [e.name for e in read_events(tmp_path)] == ["x"]


def test_a_reader_that_stays_does_not_hold_the_end_of_a_run(tmp_path: Path) -> None:
    store = opened(tmp_path)
    hand_tree(sink=store)
    store.flush()
    reader = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM groups").fetchone()  # holds what it saw until it ends
    store.event("x")
    store.close(timeout_s=15)  # raises when the writer still waits for the reader then
    assert reader.execute("SELECT count(*) FROM events").fetchone() == (0,)
    reader.close()
    assert [e.name for e in read_events(tmp_path)] == ["x"]


def test_several_threads_may_append(tmp_path: Path) -> None:
    with opened(tmp_path) as store:

        def tell(number: int) -> None:
            for i in range(200):
                store.event("tick", {"thread": number, "i": i})

        threads = [threading.Thread(target=tell, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    heard = [e.values for e in read_events(tmp_path)]
    assert all([v["i"] for v in heard if v["thread"] == n] == list(range(200)) for n in range(4))


# -- waiting and bounds ----------------------------------------------------------------------------------------


async def test_settle_waits_until_everything_is_committed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
        await store.settle(timeout_s=30)
        assert store.statistics().values["pending_rows"] == 0
        assert len(read_group(tmp_path, "hand").segments) == 6


async def test_room_is_there_at_once_when_little_waits(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.event("x")
        await store.room(timeout_s=30)
        assert store.statistics().values["pending_bytes"] < 1000


async def test_room_waits_for_the_disk_above_the_soft_bound(tmp_path: Path) -> None:
    with opened(tmp_path, StoreBounds(soft_bytes=1000)) as store:
        for i in range(500):
            store.event("x", {"i": i})
        await store.room(timeout_s=30)
        assert store.statistics().values["pending_bytes"] <= 1000
    assert len(list(read_events(tmp_path))) == 500


def tell_for_ever(store: TrajectoryStore) -> None:
    for i in range(1_000_000):
        store.event("y", {"i": i})


async def test_a_disk_that_stands_still_ends_each_wait_and_refuses_more_memory(tmp_path: Path) -> None:
    store = opened(tmp_path, StoreBounds(soft_bytes=1000, hard_bytes=100_000))
    holder = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for i in range(100):
        store.event("x", {"i": i})
    with pytest.raises(DeadlineExceeded, match=r"store\.settle: \d+ records still wait for .*run\.db after 0\.05 s"):
        await store.settle(timeout_s=0.05)
    with pytest.raises(DeadlineExceeded, match=r"store\.room: "):
        await store.room(timeout_s=0.05)
    with pytest.raises(DeadlineExceeded, match=r"store\.flush: "):
        store.flush(timeout_s=0.05)
    with pytest.raises(StoreError, match="the disk is too slow or stands still"):
        tell_for_ever(store)
    store.emit(Event(name="quiet", at=0.0, values={}))
    holder.execute("ROLLBACK")
    holder.close()
    store.close()
    assert [e.values["i"] for e in read_events(tmp_path, prefix="x")] == list(range(100))


def test_a_closed_store_takes_nothing_more(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.event("x")
    store.emit(Event(name="quiet", at=0.0, values={}))
    assert list(read_events(tmp_path)) == []


def test_closing_leaves_one_file_without_a_log_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
    assert not (tmp_path / "run.db-wal").exists()


# -- what goes wrong -------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_damages_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
        with pytest.raises(StoreError, match=rf"is being written by another process \(pid {os.getpid()}\)"):
            opened(tmp_path)
    with opened(tmp_path):
        assert len(list(read_groups(tmp_path))) == 1


def test_a_record_whose_group_is_unknown_is_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.rollout(Group(KEY).begin(0))
    with pytest.raises(StoreError, match="group g0 must be appended before"):
        store.flush()
    with pytest.raises(StoreError, match="group g0"):
        store.close()


def test_a_segment_that_is_stored_twice_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    segment = Group(KEY, sink=store).prompt(np.array([1], np.int32))
    store.segment(segment)
    with pytest.raises(StoreError, match=r"run\.db cannot be written: UNIQUE"):
        store.flush()
    with pytest.raises(StoreError):
        store.event("x")
    with pytest.raises(StoreError):
        store.close()


def test_the_first_error_is_the_one_that_is_shown(tmp_path: Path) -> None:
    def go_wrong_twice() -> None:
        with opened(tmp_path) as store:
            store.rollout(Group(KEY).begin(0))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        go_wrong_twice()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("not a database, but long enough to look like one" * 10)
    for attempt in (lambda: opened(tmp_path), lambda: read_group(tmp_path, "g0")):
        with pytest.raises(StoreError, match=r"run\.db cannot be (written|read): file is not a database"):
            attempt()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for attempt in (lambda: opened(tmp_path), lambda: read_group(tmp_path, "g0")):
        with pytest.raises(StoreError, match="has schema 99, this Treadle reads schemas 1 and 2"):
            attempt()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"run\.db cannot be written: Not a directory") as caught:
        opened(tmp_path / "file" / "run")
    assert "\n" not in str(caught.value)


def test_a_missing_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"run\.db does not exist: not a run folder"):
        list(read_groups(tmp_path))


def test_unknown_ids_get_the_nearest_ones(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
    with pytest.raises(StoreError, match="no group 'hnd' among 1; nearest: hand"):
        read_group(tmp_path, "hnd")
    with pytest.raises(StoreError, match=r"no rollout 'hand\.7\.0' among 3; nearest: hand\.\d\.0"):
        find_rollout(tmp_path, "hand.7.0")
    with pytest.raises(StoreError, match="no rollout 'nonsense'"):
        find_rollout(tmp_path, "nonsense")


def _in_a_sandbox(*options: str, code: str) -> str:
    """Output of Python code run by bubblewrap, where /mnt is a small or read-only place."""
    command = ["bwrap", "--dev-bind", "/", "/", *options, sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, f"install bubblewrap (apt-get install bubblewrap): {found.stderr[-500:]}"
    return found.stdout


def test_a_full_disk_is_one_line_and_keeps_what_was_committed() -> None:
    code = """
import numpy as np
from pathlib import Path
from treadle.core.clock import SystemClock
from treadle.core.errors import StoreError
from treadle.testing.random_forests import Growth, random_group
from treadle.trajectory.store import TrajectoryStore, read_groups
store, rng, error = TrajectoryStore(Path('/mnt/run'), clock=SystemClock()), np.random.default_rng(0), None
try:
    for i in range(10_000):
        random_group(rng, Growth(tokens=400), id=f'g{i}', ticket=i, sink=store)
        store.flush()
except StoreError as e:
    error = e
try:
    store.close()
except StoreError as e:
    assert e is error
groups = list(read_groups(Path('/mnt/run')))
print(len(groups) > 3, all(s.parent is None or s.parent in g.segments for g in groups for s in g.segments.values()))
print(error)
"""
    told = _in_a_sandbox("--size", "2000000", "--tmpfs", "/mnt", code=code).splitlines()
    full = "/mnt/run/run.db cannot be written: database or disk is full; free some disk space or set runs=FOLDER"
    assert told == ["True True", full]


def test_a_read_only_folder_can_be_read_and_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        hand_tree(sink=store)
    code = """
from pathlib import Path
from treadle.core.clock import SystemClock
from treadle.core.errors import StoreError
from treadle.trajectory.store import TrajectoryStore, read_groups
print([g.key.id for g in read_groups(Path('/mnt'))])
try:
    TrajectoryStore(Path('/mnt'), clock=SystemClock())
except StoreError as error:
    print(error)
"""
    told = _in_a_sandbox("--ro-bind", str(tmp_path), "/mnt", code=code).splitlines()
    assert told == ["['hand']", "/mnt/run.db cannot be written: Read-only file system"]


async def test_a_cancellation_in_the_moment_of_the_commit_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: futures.Future[None] = futures.Future()
    with TrajectoryStore(tmp_path / "run.db", clock=SystemClock()) as store:
        monkeypatch.setattr(store, "_reach", lambda target: committed)
        waiting = asyncio.create_task(store.settle())
        await asyncio.sleep(0)
        committed.set_result(None)
        await asyncio.sleep(0)  # the wait is over, but its task has not gone on yet
        assert waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
