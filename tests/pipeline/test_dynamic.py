"""Dynamic sampling: dropped tickets are replaced, nothing is trained too late, a run that goes on takes the same."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError, EnvError
from treadle.core.events import Fanout
from treadle.core.seeds import Stream
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Place
from treadle.pipeline.dynamic import UntilFull
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Past
from treadle.pipeline.redundant import Redundant
from treadle.pipeline.schedule import Bounds
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore


def order(*, size=2, lag=0, slack=0, most=3, updates=None):
    bounds = Bounds(groups_per_update=size, lag=lag, max_staleness=lag + slack, updates=updates)
    return UntilFull(most=most).begin(bounds, rewards=Rewards())


def entry(ticket, state=State.RUNNING, version=0):
    key = GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=version)
    return Entry(
        group=Group(key), task=EchoTaskset().task("train", ticket), since=0.0, state=state,
        place=Place(number=ticket, cursor=ticket + 1),
    )


def board_of(marks, *, version=0, batches=0):
    """A ticket for each letter: r(unning), R(eady) or d(ropped)."""
    board = Board(clock=VirtualClock(), version=version)
    board.batches = batches
    states = {"r": State.RUNNING, "R": State.READY, "d": State.DROPPED}
    for ticket, mark in enumerate(marks):
        board.admit(entry(ticket, states[mark], version=version))
    return board


@pytest.mark.parametrize(
    ("marks", "batch"),
    [
        ("RR", (0, 1)), ("RdR", (0, 1, 2)), ("ddRdRr", (0, 1, 2, 3, 4)), ("Rr", None), ("rRR", None), ("RdrR", None),
        ("Rd", None), ("dddd", None), ("dddddd", tuple(range(6))), ("ddRddd", tuple(range(6))),
    ],
)
def test_a_batch_goes_on_until_enough_groups_train_or_enough_tickets_were_taken(marks, batch):
    assert order().select(board_of(marks)) == batch


@pytest.mark.parametrize(
    ("marks", "lacking"),
    [("RR", ()), ("Rr", (1,)), ("rRR", (0,)), ("dRdrr", (3,)), ("drrr", (1, 2)), ("ddddddr", ()), ("Rd", ())],
)
def test_a_batch_lacks_what_still_runs_before_the_last_that_may_train(marks, lacking):
    assert order().missing(board_of(marks)) == lacking


def test_a_short_batch_that_would_make_others_too_old_takes_only_what_was_dropped():
    board = board_of("ddRddd" + "rrr")
    assert order(lag=1).select(board) == (0, 1, 3, 4, 5)
    assert order(lag=1, slack=1).select(board) == tuple(range(6))


def test_a_short_batch_behind_which_little_lives_is_trained():
    assert order(lag=1).select(board_of("ddRddd" + "rr")) == tuple(range(6))


@pytest.mark.parametrize(
    ("marks", "lag", "starts"),
    [
        ("r", 0, True), ("rr", 0, False), ("rd", 0, True), ("RdR", 0, False), ("Rdddd", 0, True), ("Rddddd", 0, False),
        ("rrr", 1, True), ("rrrr", 1, False), ("rrrd", 1, True), ("RRr", 1, True), ("RRrr", 1, False),
    ],
)
def test_a_ticket_starts_when_few_enough_live_ones_are_ahead(marks, lag, starts):
    assert order(lag=lag).admit(board_of(marks)) is starts


def test_nothing_is_started_ahead_of_the_last_batch():
    last = order(lag=1, updates=5)
    assert last.admit(board_of("rrr", batches=3))
    assert last.admit(board_of("r", batches=4))
    assert not last.admit(board_of("rr", batches=4))


UPDATES = 10


@given(
    size=st.integers(1, 3), lag=st.integers(0, 3), slack=st.integers(0, 2), most=st.integers(2, 4),
    seed=st.integers(0, 10_000), ready=st.floats(0.2, 0.9), lost=st.floats(0, 1),
)
def test_for_all_orders_of_ending_and_dropping_nothing_is_trained_too_late(size, lag, slack, most, seed, ready, lost):
    """A bare board: running tickets end, new ones start also while a batch is trained."""
    draw = Stream(seed).python()
    schedule = order(size=size, lag=lag, slack=slack, most=most, updates=UPDATES)
    board, taken = Board(clock=VirtualClock()), []

    def start():
        while board.next_ticket < UPDATES * most * size and schedule.admit(board):
            board.admit(entry(board.next_ticket, version=board.version))
        assert len(board.entries) <= (lag + most) * size

    while board.batches < UPDATES:
        start()
        running = [e for e in board.entries.values() if not e.settled]
        for one in running:
            if draw.random() < ready:
                board.move(one, State.GENERATED)
                board.move(one, State.DROPPED if draw.random() < lost else State.READY)
        batch = schedule.select(board)
        assert batch is not None or running
        if batch is None:
            continue
        start()
        trains = [board.entries[t] for t in batch if board.entries[t].state is State.READY]
        assert all(board.version - e.group.key.admitted_version <= lag + slack for e in trains)
        assert len(trains) == size or len(batch) == most * size or not trains
        for one in trains:
            board.move(one, State.TRAINED)
        for ticket in batch:
            board.remove(ticket)
        board.version += bool(trains)
        board.batches += 1
        taken += batch
    assert len(set(taken)) == len(taken)


# -- in the loop -----------------------------------------------------------------------------------------------


def mixed(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def odd_are_equal(turn):
    """Every second ticket has nothing to compare."""
    return "yes" if int(turn.rollout[1:7]) % 2 else mixed(turn)


@pytest.mark.parametrize("lag", [0, 1])
def test_dropped_tickets_are_replaced_and_every_update_is_full(bench, lag):
    bench.script = odd_are_equal
    bench.set(schedule=UntilFull(), groups_per_update=2, updates=3, lag=lag).run()
    assert [b["tickets"] for b in bench.trainer.batches] == [[0, 2], [4, 6], [8, 10]]
    assert [e["tickets"] for e in bench.ears.named("batch.taken")] == ["0,1,2", "3,4,5,6", "7,8,9,10"]
    told = bench.ears.named("update.done")
    assert [(e["groups"], e["dropped"]) for e in told] == [(2, 1), (2, 2), (2, 2)]
    assert [e["dropped.zero_variance"] for e in told] == [1, 2, 2]
    assert sorted(e["ticket"] for e in bench.ears.named("group.admitted")) == list(range(11))


def test_where_nothing_trains_a_batch_ends_all_the_same(bench):
    bench.script = lambda turn: "yes"
    report = bench.set(schedule=UntilFull(most=3), groups_per_update=2, updates=3).run()
    assert (report.updates, report.version) == (3, 0)
    assert [e["dropped"] for e in bench.ears.named("update.skipped")] == [6, 6, 6]


def test_a_world_that_always_fails_ends_the_run(bench):
    bench.taskset = EchoTaskset(("yes",), data={"fault": "step"})
    with pytest.raises(EnvError, match="3 batches in a row"):
        bench.set(schedule=UntilFull(), updates=50).run()


@settings(max_examples=25, deadline=None)
@given(
    lag=st.integers(0, 2), slack=st.integers(0, 1), groups=st.integers(1, 3), seed=st.integers(0, 10_000),
    share=st.sampled_from([0.2, 0.6, 0.9]), most=st.integers(2, 3),
)
def test_for_all_latencies_the_bound_holds_and_every_ticket_ends_once(
    make_bench, lag, slack, groups, seed, share, most
):
    def script(turn):
        return "yes" if Stream(seed).at(turn.rollout[:7]).uniform(0) < share else mixed(turn)

    bench = make_bench()
    bench.script = script
    bench.latency = lambda turn: Stream(seed).at(turn.rollout).python().lognormvariate(0.0, 1.5)
    bench.set(
        lag=lag, max_staleness=lag + slack, groups_per_update=groups, updates=5, group_size=2,
        schedule=UntilFull(most=most),
    )
    report = bench.run()
    bench.thread.close()
    assert (report.updates, report.worst_staleness <= lag + slack) == (5, True)
    assert report.most_outstanding <= bench.config.permits == (lag + most) * groups
    assert {e["reason"] for e in bench.ears.named("group.dropped")} <= {"zero_variance", "cancelled"}
    ends = Counter(e["ticket"] for kind in ("group.trained", "group.dropped") for e in bench.ears.named(kind))
    assert ends == Counter(e["ticket"] for e in bench.ears.named("group.admitted"))
    assert set(bench.shelf.ends.values()) == {1}


class Stopper:
    """Stops a loop at an update."""

    def __init__(self, at):
        self.at = at
        self.loop = None

    def emit(self, event):
        if event.name == "update.done" and event.values["update"] == self.at:
            self.loop.stop()


def go(make_bench, folder, *, stop=0, schedule=None, script=odd_are_equal):
    """Begin a run in this folder, or go on; its bench and what was asked of its engine."""
    folder.mkdir(exist_ok=True)
    bench, stopper = make_bench(), Stopper(stop)
    bench.script = script
    bench.latency = lambda turn: 1.0 + sum(map(ord, turn.rollout)) % 5
    bench.set(schedule=schedule or UntilFull(), groups_per_update=2, updates=5, lag=1, group_size=2)
    with TrajectoryStore(folder, clock=bench.clock) as store:
        past, remains = Past.read(store.path, updates=5)
        store.clear(remains)
        bench.shelf = store
        bench.ledger = Ledger(
            Fanout(store, bench.ears, stopper), meter=bench.meter, rewards=bench.rewards, past=past
        )
        bench.ledger.tell("run.resumed" if past.began else "run.started", {"updates": 5})
        engine = bench.engine()
        stopper.loop = bench.loop(engine=engine)
        bench.clock.run(stopper.loop.run())
    bench.thread.close()
    return bench, {request.cache.trunk for request in engine.requests}


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_run_that_goes_on_takes_the_same_tickets(make_bench, tmp_path, stop):
    whole, _ = go(make_bench, tmp_path / "whole")
    first, _ = go(make_bench, tmp_path / "stopped", stop=stop)
    assert len(first.trainer.batches) == stop
    again, played = go(make_bench, tmp_path / "stopped")
    assert [b["tickets"] for b in again.trainer.batches] == [b["tickets"] for b in whole.trainer.batches]
    assert [b["tickets"] for b in again.trainer.batches] == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]]
    assert [e["update"] for e in again.ears.named("replayed.update.done")] == list(range(1, stop + 1))
    assert played.isdisjoint(f"t{ticket:06d}" for ticket in range(4 * stop - 1))
    assert all(b["version"] - oldest <= 1 for b in again.trainer.batches for oldest in b["oldest"])


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_run_that_goes_on_gives_up_the_same_redundant_groups(make_bench, tmp_path, stop):
    def play(name, **more):
        bench, played = go(make_bench, tmp_path / name, schedule=Redundant(), script=mixed, **more)
        gone = [e["ticket"] for e in bench.ears.named("group.dropped") if e["reason"] == "cancelled"]
        told = [e["ticket"] for e in bench.ears.named("replayed.group.dropped")]
        return [batch["tickets"] for batch in bench.trainer.batches], [*told, *gone], played

    first, _, _ = play("stopped", stop=stop)
    again, given_up, played = play("stopped")
    assert (len(first), len(again)) == (stop, 5)
    assert again[:stop] == first
    assert played.isdisjoint(f"t{ticket:06d}" for ticket in range(3 * stop))
    assert {*given_up, *(ticket for batch in again for ticket in batch)} == set(range(15))


# -- what a recipe says ----------------------------------------------------------------------------------------


def test_permits_and_tickets_are_those_of_the_largest_batches():
    config = PipelineConfig(groups_per_update=4, lag=1, updates=10, schedule=UntilFull(most=3))
    assert (config.permits, config.tickets) == ((1 + 3) * 4, 10 * 3 * 4)
    assert (PipelineConfig(groups_per_update=4, lag=1, updates=10).permits) == 8


def test_a_schedule_that_replaces_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"schedule\.most: got 1, expected >= 2"):
        UntilFull(most=1)
