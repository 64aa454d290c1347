"""The counting check and the orders under it: who may overtake whom, and what holds for all latencies."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from treadle.agents.limits import Rewards
from treadle.core.errors import EngineError
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.core.seeds import Stream
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.counting import Counting, InOrder, choose
from treadle.pipeline.curriculum import Place
from treadle.pipeline.orders import SCHEDULES, FreshestFirst, Learnability, ShortestRemainder
from treadle.pipeline.schedule import Bounds, TicketOrder
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey

REWARDS = Rewards(main="correct")
FIXED = sorted(set(SCHEDULES) - {"dynamic", "redundant"})
"""Schedules whose batches are so many tickets, dropped ones included."""


def bounds(size=2, lag=1, most=2, **more):
    return Bounds(groups_per_update=size, lag=lag, max_staleness=most, **more)


def entry(ticket, *, state=State.READY, scores=(1.0, 0.0), version=0, turns=1, word="yes"):
    key = GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family=word, split="train", admitted_version=version)
    group = Group(key)
    at = group.prompt(np.array([1], np.int32))
    for index, score in enumerate(scores):
        rollout = group.begin(index).id
        last = at
        for turn in range(turns):
            said = Completion(
                ids=np.array([5], np.int32), logprobs=np.zeros(1, np.float32), entropy=np.zeros(1, np.float32),
                versions=((version, 1),), kv_version=version, finish=Finish.STOP,
            )
            last = group.sampled(rollout, said, after=last, turn=turn)
        group.pay(rollout, "correct", score)
        group.end(rollout, OK)
    return Entry(
        group=group, task=EchoTaskset((word,)).task("train", ticket), since=0.0, state=state,
        place=Place(number=ticket, cursor=ticket + 1),
    )


def board_of(*entries, batches=0):
    board = Board(clock=VirtualClock())
    board.batches = batches
    for one in entries:
        board.next_ticket = one.ticket
        board.admit(one)
    return board


def running(ticket, **facts):
    return entry(ticket, state=State.RUNNING, **facts)


def test_a_ready_group_overtakes_a_slow_one_when_the_bound_has_room():
    board = board_of(running(0), entry(1), entry(2), running(3))
    assert Counting(bounds=bounds()).select(board) == (1, 2)


def test_without_room_the_update_waits_for_the_slow_one():
    board = board_of(running(0), entry(1), entry(2), running(3))
    assert Counting(bounds=bounds(most=1)).select(board) is None


def test_a_ticket_that_is_due_is_waited_for():
    board = board_of(running(0), entry(1), entry(2), entry(3), batches=1)
    assert Counting(bounds=bounds()).select(board) is None
    board.move(board.entries[0], State.GENERATED)
    board.move(board.entries[0], State.READY)
    assert Counting(bounds=bounds()).select(board) == (0, 1)


def test_on_a_board_that_goes_on_dates_count_from_the_first_batch_of_the_run():
    board = Board(clock=VirtualClock(), batches=2, closed=frozenset({0, 1, 2, 5}))
    order = Counting(bounds=bounds())
    while order.admit(board):
        board.admit(running(board.next_ticket) if board.next_ticket == 3 else entry(board.next_ticket))
    assert list(board.entries) == [3, 4, 6, 7]
    for states in (State.GENERATED, State.READY):
        assert order.select(board) is None
        board.move(board.entries[3], states)
    assert order.select(board) == (3, 4)


def test_a_preference_gives_way_where_something_is_due():
    board = board_of(entry(0, version=0), entry(1, version=0), entry(4, version=3), entry(5, version=3), batches=1)
    assert FreshestFirst(bounds=bounds()).select(board) == (0, 1)
    board = board_of(entry(2, version=0), entry(3, version=0), entry(4, version=3), entry(5, version=3), batches=1)
    assert FreshestFirst(bounds=bounds()).select(board) == (4, 5)


def test_what_teaches_most_goes_first():
    scores = {0: (1.0, 1.0), 1: (0.0, 1.0), 2: (0.0, 0.4), 3: (0.0, 0.0)}
    board = board_of(*(entry(ticket, scores=values) for ticket, values in scores.items()))
    assert Learnability(bounds=bounds(), rewards=REWARDS).select(board) == (1, 2)


def test_the_engine_hears_of_short_families_first_but_never_beyond_a_batch():
    order = ShortestRemainder(bounds=bounds(size=4, lag=1, most=2))
    for word, turns in (("short", 1), ("long", 9)):
        order.closed(entry(0, turns=turns, word=word))
    board = board_of(*(running(t, scores=(), word=w) for t, w in enumerate(("long", "short", "never seen", "short"))))
    told = [order.priority(board, ticket) for ticket in range(4)]
    assert told == [3, 1, 5, 3]
    assert all(ticket <= said < ticket + 4 for ticket, said in enumerate(told))


def test_a_group_that_was_played_half_has_less_left():
    order = ShortestRemainder(bounds=bounds(size=5))
    order.closed(entry(0, turns=4, word="yes"))
    board = board_of(running(0, scores=()), running(1, turns=2), running(2, turns=9))
    assert [order.priority(board, ticket) for ticket in range(3)] == [4, 1 + 2, 2]


def test_at_the_lag_the_default_is_strict_ticket_order():
    assert PLAN_AT_LAG.select(board_of(entry(0), running(1), entry(2), entry(3))) is None
    assert PLAN_AT_LAG.select(board_of(entry(0), entry(1), entry(2), entry(3))) == (0, 1)


PLAN_AT_LAG = InOrder().begin(bounds(most=1), rewards=REWARDS)


@given(
    size=st.integers(1, 4), lag=st.integers(0, 3), slack=st.integers(0, 3), seed=st.integers(0, 10_000),
    name=st.sampled_from(FIXED), ready=st.floats(0.2, 0.9),
)
def test_for_all_orders_of_ending_a_ticket_is_trained_within_its_bound(size, lag, slack, seed, name, ready):
    """A bare board: at every step some running tickets end, and a batch is taken as soon as the schedule allows it."""
    draw = Stream(seed).python()
    held = bounds(size=size, lag=lag, most=lag + slack)
    order = SCHEDULES[name]().begin(held, rewards=REWARDS)
    board, tickets, admitted, taken = Board(clock=VirtualClock()), 12 * size, {}, {}
    while board.batches < 12:
        while board.next_ticket < tickets and order.admit(board):
            admitted[board.next_ticket] = board.batches
            board.admit(running(board.next_ticket, scores=(draw.random(), draw.random()), version=board.batches))
        assert len(board.entries) <= (lag + 1) * size
        open_ = [e for e in board.entries.values() if not e.settled]
        for one in open_:
            if draw.random() < ready:
                board.move(one, State.GENERATED)
                board.move(one, draw.choice((State.READY, State.READY, State.DROPPED)))
        batch = order.select(board)
        assert batch is not None or len(open_) > 0
        for ticket in batch or ():
            taken[ticket] = board.batches
            if board.entries[ticket].state is State.READY:
                board.move(board.entries[ticket], State.TRAINED)
            board.remove(ticket)
        board.batches += batch is not None
    assert sorted(taken) == list(range(tickets))
    assert all(taken[t] - admitted[t] <= lag + slack for t in taken)
    assert all(taken[t] - t // size <= slack for t in taken)


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans()), unique_by=lambda one: one[0], max_size=12),
       st.integers(1, 3))
def test_for_all_boards_the_check_says_no_only_when_every_choice_would_break_the_bound(tickets, now):
    held = bounds(size=2, lag=2, most=4)
    assume(sum(t // 2 + 2 <= now for t, _ in tickets) <= 2)  # what the check left behind at the batch before
    settled = [entry(t, scores=()) for t, done in sorted(tickets) if done]
    others = [running(t, scores=()) for t, done in tickets if not done]
    chosen = choose(settled, others, now=now, bounds=held)
    safe = [one for one in _pairs([e.ticket for e in settled]) if _safe(one, [t for t, _ in tickets], now)]
    assert (chosen in safe) if chosen is not None else (safe == [])


def _pairs(tickets):
    return [(a, b) for a in tickets for b in tickets if a < b]


def _safe(batch, tickets, now):
    """The whole check, for every j."""
    rest = [t // 2 + 2 - now for t in tickets if t not in batch]
    return all(sum(due <= j for due in rest) <= 2 * j for j in range(8))


# -- in the loop -----------------------------------------------------------------------------------------------


def tail(seed, sigma):
    def latency(turn):
        return Stream(seed).at(turn.rollout, turn.number).python().lognormvariate(0.0, sigma)

    return latency


@settings(max_examples=25, deadline=None)
@given(
    lag=st.integers(0, 2), slack=st.integers(0, 2), groups=st.integers(1, 3), seed=st.integers(0, 10_000),
    name=st.sampled_from(FIXED), fault=st.sampled_from(["", "step", "infra", "score"]),
)
def test_for_all_schedules_and_latencies_the_bound_holds_and_every_ticket_ends_once(
    make_bench, lag, slack, groups, seed, name, fault
):
    bench = make_bench()
    bench.taskset = EchoTaskset(("yes",), data={"turns": 2}, faults={2: fault} if fault else {})
    bench.set(
        lag=lag, max_staleness=lag + slack, groups_per_update=groups, updates=5, group_size=2,
        schedule=SCHEDULES[name](), failed_batches=5,
    )
    bench.latency = tail(seed, 2.0)
    report = bench.run()
    bench.thread.close()
    assert (report.updates, report.worst_staleness <= lag + slack) == (5, True)
    for batch in bench.trainer.batches:
        assert all(batch["version"] - oldest <= lag + slack for oldest in batch["oldest"])
    ends = Counter(e["ticket"] for kind in ("group.trained", "group.dropped") for e in bench.ears.named(kind))
    assert ends == Counter(range(5 * groups))
    assert {e["reason"] for e in bench.ears.named("group.dropped")} <= {"failed"}
    assert set(bench.shelf.ends.values()) == {1}


def test_at_lag_0_every_schedule_takes_the_same_batches(make_bench):
    seen = []
    names = [*FIXED, "dynamic"]
    for name in names:
        bench = make_bench()
        bench.latency = tail(3, 1.5)
        bench.set(schedule=SCHEDULES[name]()).run()
        bench.thread.close()
        seen.append([batch["tickets"] for batch in bench.trainer.batches])
    assert seen == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]] * len(names)


def slow(turn):
    """Ticket 0 takes a long time."""
    return 50.0 if turn.rollout.startswith("t000000.") else 1.0


def test_looking_ahead_goes_on_while_one_group_is_slow(bench):
    bench.latency = slow
    bench.set(lag=1, max_staleness=2, groups_per_update=1, updates=4).run()
    assert [batch["tickets"] for batch in bench.trainer.batches] == [[1], [0], [2], [3]]
    stale = [batch["version"] - min(batch["oldest"]) for batch in bench.trainer.batches]
    assert stale[:3] == [0, 1, 1]
    assert stale[3] <= 1  # ticket 3 is admitted while an update ends: before or after its new version


def test_under_drop_nobody_waits_for_what_is_too_late(bench):
    bench.latency = slow
    bench.set(lag=1, groups_per_update=1, updates=4, on_stale="drop")
    bench.run()
    assert sorted(batch["tickets"][0] for batch in bench.trainer.batches) == [1, 2, 3]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [(0, "cancelled")]
    assert bench.clock.now() < 10
    assert set(bench.shelf.ends.values()) == {1}


def test_under_mask_a_group_trains_without_the_rollouts_that_are_too_old(bench):
    """Three rollouts of ticket 0 are lost late and played again under a younger version; the first one is too old."""
    def slow_at_first(turn):
        return turn.rollout.startswith("t000000.") and turn.rollout.endswith(".0")

    bench.latency = lambda turn: 9.0 if slow_at_first(turn) else 1.0
    lost = ("t000000.1.0", "t000000.2.0", "t000000.3.0")
    bench.script = lambda turn: EngineError("lost") if turn.rollout in lost else mixed(turn)
    trained = []
    bench.trainer.train = remember(bench.trainer.train, trained)
    bench.set(lag=1, groups_per_update=1, updates=4, on_stale="mask").run()
    assert [ticket for ticket, _, _ in trained] == [1, 2, 3, 0]
    assert all(staleness <= 1 for _, staleness, _ in trained)
    assert [actors for _, _, actors in trained] == [{0, 1, 2, 3}] * 3 + [{1, 2, 3}]
    assert [len(rewards) for batch in bench.trainer.batches for rewards in batch["rewards"]] == [4, 4, 4, 4]
    (tokens,) = [end["tokens"] for end in bench.ears.named("rollout.done") if end["rollout"] == "t000000.0.0"]
    assert [update["stale_tokens"] for update in bench.ears.named("update.done")] == [0, 0, 0, tokens]
    assert tokens > 0


def mixed(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def remember(train, trained):
    def wrapped(groups):
        report = train(groups)
        for group in groups:
            actors = {int(s.rollout.split(".")[1]) for s in group.segments.values() if s.is_action}
            trained.append((group.key.ticket, report.version - 1 - group.oldest_version, actors))
        return report

    return wrapped


def test_the_engine_hears_the_priority_of_the_moment(bench):
    class Hasty(TicketOrder):
        def priority(self, board, ticket):
            return 100 * board.batches + ticket

    bench.taskset = EchoTaskset(("yes",), data={"turns": 3})
    bench.latency = lambda turn: 2.0 if turn.rollout.startswith("t000001") else 1.0
    engine = bench.engine()
    bench.set(lag=1, groups_per_update=1, updates=3).run(
        schedule=Hasty(groups_per_update=1, lag=1), engine=engine
    )
    told = [r.priority for r in engine.requests if r.cache.rollout.startswith("t000001.0")]
    assert told == [1, 1, 101]


def test_the_names_are_the_plans():
    assert list(SCHEDULES) == ["tickets", "strict", "freshest", "shortest", "learnability", "dynamic", "redundant"]
    assert replace(bounds(), lag=0).may_start(board_of(batches=0))
