"""A run that goes on takes shrunk batches as they were taken; who was late for none gets another chance."""

import pytest

from treadle.agents.limits import RolloutLimits
from treadle.core.clock import SystemClock
from treadle.core.events import Fanout
from treadle.core.outcome import CANCELLED
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Past
from treadle.pipeline.watchdog import WatchdogConfig
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore

FOR_EVER = 1e6


def play(make_bench, folder, *, latency, updates):
    """Begin a run, or go on with it from its start."""
    bench = make_bench()
    bench.limits = RolloutLimits(generate_s=10 * FOR_EVER)
    bench.latency = latency
    watchdog = WatchdogConfig(promote_s=None, rollout_s=None, shrink_s=100.0)
    with TrajectoryStore(folder, clock=SystemClock()) as store:
        past, remains = Past.read(store.path, updates=updates)
        store.clear(remains)
        bench.ledger = Ledger(Fanout(store, bench.ears), meter=bench.meter, rewards=bench.rewards, past=past)
        bench.shelf = store
        bench.set(watchdog=watchdog, updates=updates, lag=1).run()
    bench.thread.close()
    return bench


def test_a_batch_that_was_shrunk_is_trained_again_as_it_was(make_bench, tmp_path):
    first = play(
        make_bench, tmp_path, updates=1,
        latency=lambda turn: FOR_EVER if turn.rollout.startswith("t000001") else 1.0,
    )
    assert [e["reason"] for e in first.ears.named("group.dropped")] == ["late"]
    again = play(make_bench, tmp_path, updates=3, latency=lambda turn: 1.0)
    assert [batch["tickets"] for batch in again.trainer.batches] == [[0, 2], [3, 4, 5], [6, 7, 8]]
    assert again.trainer.batches[0] == first.trainer.batches[0]
    assert [(e["ticket"], e["reason"]) for e in again.ears.named("replayed.group.dropped")] == [(1, "late")]
    assert again.ears.named("group.dropped") == again.ears.named("watchdog.acted") == []
    played = {e["group"] for e in again.ears.named("rollout.done")}
    assert played == {f"t{ticket:06d}" for ticket in range(3, 9)}


def test_a_late_group_that_was_trained_without_its_silent_member_is_trained_so_again(make_bench, tmp_path):
    first = play(
        make_bench, tmp_path, updates=1,
        latency=lambda turn: FOR_EVER if turn.rollout.startswith("t000001.3") else 1.0,
    )
    again = play(make_bench, tmp_path, updates=2, latency=lambda turn: 1.0)
    assert [len(rewards) for rewards in first.trainer.batches[0]["rewards"]] == [4, 3, 4]
    assert again.trainer.batches[0] == first.trainer.batches[0]
    assert {e["group"] for e in again.ears.named("rollout.done")} == {"t000003", "t000004", "t000005"}


@pytest.fixture
def late(tmp_path):
    """A store in which ticket 0 was late and cancelled, for a batch that no update took."""
    with TrajectoryStore(tmp_path, clock=SystemClock()) as store:
        key = GroupKey(id="t000000", ticket=0, task="t", family="", split="train", admitted_version=0)
        group = Group(key, sink=store)
        rollout = group.begin(0).id
        group.end(rollout, CANCELLED, scored=False)
        place = {"number": 0, "cursor": 1, "skipped_tasks": 0}
        store.event("group.admitted", {"group": "t000000", "ticket": 0, "task": "t", "version": 0, **place})
        store.event("rollout.done", {"rollout": rollout})
        store.event("group.dropped", {"ticket": 0, "reason": "late"})
        yield store


def test_who_was_late_for_a_batch_that_was_never_taken_is_played_again(late):
    late.flush()
    past, remains = Past.read(late.path, updates=4)
    assert past.given_up == {}
    assert not past.told("group.dropped", {"ticket": 0})
    assert (remains.rollouts, remains.events) == ((("t000000", "t000000.0.0"),), (2, 3))


def test_who_was_late_for_a_batch_that_was_taken_stays_late(late):
    late.event("batch.taken", {"update": 1, "tickets": "0"})
    late.flush()
    past, remains = Past.read(late.path, updates=4)
    assert (past.given_up, bool(remains)) == ({0: "late"}, False)
