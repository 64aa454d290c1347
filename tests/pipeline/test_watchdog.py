"""The watchdog: what it does about a wait, when, how often, and what it leaves alone."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agents.group_player import RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError, DeadlineExceeded
from treadle.core.outcome import Status
from treadle.core.seeds import Stream
from treadle.envs.host import HostConfig
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.counting import Counting
from treadle.pipeline.curriculum import Place
from treadle.pipeline.orders import SCHEDULES
from treadle.pipeline.past import Past
from treadle.pipeline.schedule import Bounds, Recorded, TicketOrder
from treadle.pipeline.watchdog import LOOK_S, WatchdogConfig, remedy
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey

ASLEEP = WatchdogConfig(promote_s=None, rollout_s=None, shrink_s=None)
FOR_EVER = 1e6


def after(**seconds):
    """A watchdog with these remedies alone."""
    return replace(ASLEEP, **seconds)


def stuck(*starts):
    """Latencies: rollouts whose ids start so never hear from the engine."""
    return lambda turn: FOR_EVER if turn.rollout.startswith(starts) else 1.0


@pytest.fixture
def bench(bench):
    """The engine's own deadline is out of the way."""
    bench.limits = RolloutLimits(generate_s=10 * FOR_EVER)
    return bench


def acts(bench):
    return [(act["action"], act["wait"], act["for"]) for act in bench.ears.named("watchdog.acted")]


def ends(bench):
    return {end["rollout"]: end for end in bench.ears.named("rollout.done")}


# -- cancel ------------------------------------------------------------------------------------------------------


def test_an_attempt_that_the_engine_forgets_is_cancelled_and_played_again(bench):
    bench.latency = stuck("t000001.2.0")
    bench.set(watchdog=after(rollout_s=50.0), updates=1).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 1, 2]
    assert [len(rewards) for rewards in bench.trainer.batches[0]["rewards"]] == [4, 4, 4]
    assert acts(bench) == [("cancel", "rollout t000001.2.0", "the engine")]
    assert bench.ears.named("watchdog.acted")[0]["since_s"] == pytest.approx(50.0)
    first, again = ends(bench)["t000001.2.0"], ends(bench)["t000001.2.1"]
    assert [first[key] for key in ("status", "origin", "type", "retried")] == ["error", "infra", "silent", True]
    assert first["message"] == "no new segment for 50 s while it waited for the engine"
    assert (again["status"], first["reward"]) == ("ok", None)
    assert set(bench.shelf.ends.values()) == {1}
    assert bench.clock.now() < 60


def test_a_world_that_hangs_beyond_its_own_limits_costs_its_attempts_and_no_more(bench):
    bench.host = HostConfig(step_s=FOR_EVER, episode_s=FOR_EVER)
    bench.taskset = EchoTaskset(("yes",), faults={1: "hang"})
    bench.set(watchdog=after(rollout_s=50.0), updates=1).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert [event["reason"] for event in bench.ears.named("group.dropped")] == ["failed"]
    assert len(acts(bench)) == 12  # four members, the first attempt and two more
    assert {lacks for _, _, lacks in acts(bench)} == {"the environment"}
    assert {end["type"] for id, end in ends(bench).items() if id.startswith("t000001")} == {"silent"}


def test_siblings_make_up_for_a_member_that_stays_silent(bench):
    bench.latency = stuck("t000001.2.")
    bench.retries = RetryBudget(infra=1, env=0)
    bench.set(watchdog=after(rollout_s=50.0), updates=1).run()
    assert [len(rewards) for rewards in bench.trainer.batches[0]["rewards"]] == [4, 3, 4]
    assert [action for action, _, _ in acts(bench)] == ["cancel", "cancel"]


def test_who_makes_segments_is_never_silent(bench):
    bench.taskset = EchoTaskset(("yes",), data={"turns": 6})
    bench.latency = lambda turn: 40.0
    bench.set(watchdog=after(rollout_s=50.0, shrink_s=50.0), updates=1).run()
    assert acts(bench) == []
    assert bench.clock.now() == pytest.approx(240.0)


def test_by_default_a_world_whose_calls_take_minutes_is_left_alone(bench):
    """And nothing stalls while segments come, though no rollout ends for longer than `stall_s`."""
    bench.limits = RolloutLimits()
    bench.host = HostConfig(step_s=900.0, episode_s=FOR_EVER)
    bench.taskset = EchoTaskset(("yes",), data={"turns": 4, "latency": 600.0})
    bench.latency = lambda turn: 590.0
    bench.set(updates=1).run()
    assert bench.clock.now() == pytest.approx(4 * 1190.0)
    assert bench.clock.now() > bench.config.stall_s
    assert acts(bench) == []
    assert bench.trainer.batches[0]["tickets"] == [0, 1, 2]


# -- promote -----------------------------------------------------------------------------------------------------


def test_the_group_that_an_update_lacks_goes_first_at_its_next_turn_and_is_promoted_once(bench):
    engine = bench.engine()
    bench.taskset = EchoTaskset(("yes",), data={"turns": 3})
    engine._latency = lambda turn: 60.0 if turn.rollout.startswith("t000000") else 1.0
    bench.set(watchdog=after(promote_s=50.0), updates=1).run(engine=engine)
    told = {}
    for request in engine.requests:
        told.setdefault(request.cache.rollout, []).append(request.priority)
    assert told["t000000.0.0"] == [0, -3, -3]  # sooner by as many tickets as may be outstanding
    assert told["t000001.0.0"] == [1, 1, 1]
    assert acts(bench) == [("promote", "update 1", "group t000000")]
    assert bench.ears.named("watchdog.acted")[0]["since_s"] == pytest.approx(50.0)


# -- shrink ------------------------------------------------------------------------------------------------------


def test_an_update_goes_without_a_group_in_which_nobody_stirs(bench):
    bench.latency = stuck("t000001")
    loop = bench.set(watchdog=after(shrink_s=100.0), updates=2, lag=1).loop()
    report = bench.clock.run(loop.run())
    assert [batch["tickets"] for batch in bench.trainer.batches] == [[0, 2], [3, 4, 5]]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [(1, "late")]
    assert acts(bench) == [("shrink", "update 1", "group t000001")]
    assert {ends(bench)[f"t000001.{i}.0"]["status"] for i in range(4)} == {"cancelled"}
    assert [rollout.reward for id, rollout in bench.shelf.rollouts.items() if id.startswith("t000001")] == [None] * 4
    assert set(bench.shelf.ends.values()) == {1}
    assert (report.reason, loop.permits.held) == ("done", 0)
    assert bench.clock.now() < 130


def test_a_late_group_with_enough_valid_rollouts_trains_without_the_silent_one(bench):
    bench.latency = stuck("t000001.3")
    bench.set(watchdog=after(shrink_s=100.0), updates=1).run()
    assert [len(rewards) for rewards in bench.trainer.batches[0]["rewards"]] == [4, 3, 4]
    assert ends(bench)["t000001.3.0"]["status"] == "cancelled"
    assert bench.ears.named("group.dropped") == []


def test_what_a_late_group_with_too_few_of_them_was_paid_is_not_trained(bench):
    bench.latency = stuck("t000001.2", "t000001.3")
    bench.set(watchdog=after(shrink_s=100.0), updates=1).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert [(e["reason"], e["valid"]) for e in bench.ears.named("group.dropped")] == [("late", 2)]


def test_an_update_waits_for_a_group_as_long_as_one_of_it_stirs(bench):
    bench.taskset = EchoTaskset(("yes",), data={"turns": 6})
    bench.latency = lambda turn: {"t000001.0.0": 60.0, "t000001.1.0": FOR_EVER}.get(turn.rollout, 1.0)
    bench.set(watchdog=after(shrink_s=100.0), updates=1).run()
    assert [len(rewards) for rewards in bench.trainer.batches[0]["rewards"]] == [4, 3, 4]
    assert 360.0 <= bench.clock.now() < 400.0


def test_attempts_that_were_cancelled_count_as_one_silence(bench):
    bench.latency = stuck("t000001")
    bench.retries = RetryBudget(infra=9, env=0)
    bench.set(watchdog=after(rollout_s=50.0, shrink_s=120.0), updates=1).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert [action for action, _, _ in acts(bench)] == ["cancel"] * 8 + ["shrink"]
    assert bench.clock.now() < 150


def test_a_batch_of_which_nothing_would_be_left_is_not_shrunk_and_ends_the_run_by_name(bench):
    bench.latency = stuck("t")
    bench.set(watchdog=after(promote_s=40.0, shrink_s=50.0), stall_s=200, updates=1)
    with pytest.raises(DeadlineExceeded, match=r"update 1 waits for its groups: nothing happened for 200 s; ticket 0 "):
        bench.run()
    assert [action for action, _, _ in acts(bench)] == ["promote"] * 3
    (said,) = bench.ears.named("wait.expired")
    assert said["action"] == "the run was stopped; the watchdog had done 3 x promote"


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"redundant"}))
def test_every_schedule_goes_without_the_silent_ones(bench, name):
    bench.latency = stuck("t000000", "t000004")
    bench.set(
        watchdog=after(shrink_s=100.0), updates=3, lag=1, max_staleness=2, schedule=SCHEDULES[name]()
    )
    report = bench.run()
    late = [e["ticket"] for e in bench.ears.named("group.dropped") if e["reason"] == "late"]
    trained = [ticket for batch in bench.trainer.batches for ticket in batch["tickets"]]
    assert late == [0, 4]
    replaced = 2 if name == "dynamic" else 0
    assert sorted(late + trained) == list(range(9 + replaced))
    assert (report.reason, set(bench.shelf.ends.values())) == ("done", {1})


def test_redundant_groups_need_no_watchdog_to_go_without_a_silent_one(bench):
    bench.latency = stuck("t000000", "t000005")
    bench.set(watchdog=after(shrink_s=100.0), updates=2, schedule=SCHEDULES["redundant"]()).run()
    assert [e["ticket"] for e in bench.ears.named("group.dropped") if e["reason"] == "cancelled"] == [0, 5]
    assert [batch["tickets"] for batch in bench.trainer.batches] == [[1, 2, 3], [4, 6, 7]]
    assert bench.clock.now() < 100.0


def test_dynamic_sampling_without_lag_replaces_the_silent_ones(bench):
    bench.latency = stuck("t000000")
    bench.set(watchdog=after(shrink_s=100.0), updates=2, schedule=SCHEDULES["dynamic"]())
    report = bench.run()
    assert [e["ticket"] for e in bench.ears.named("group.dropped") if e["reason"] == "late"] == [0]
    assert [batch["tickets"] for batch in bench.trainer.batches] == [[1, 2, 3], [4, 5, 6]]
    assert report.reason == "done"


@settings(max_examples=15, deadline=None)
@given(
    silent=st.sets(st.integers(0, 3), max_size=2), lag=st.integers(0, 2), slack=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_for_all_silent_groups_tickets_end_once_and_the_bound_holds(make_bench, silent, lag, slack, seed):
    """One of the three tickets of two batches at most: so something is left to train in every batch."""
    bench = make_bench()
    bench.limits = RolloutLimits(generate_s=10 * FOR_EVER)
    never = tuple(f"t{3 * block:06d}" for block in silent)

    def latency(turn):
        draw = Stream(seed).at(turn.rollout).python().lognormvariate(0.0, 1.0)
        return FOR_EVER if turn.rollout.startswith(never) else min(draw, 50.0)

    bench.latency = latency
    bench.set(watchdog=after(shrink_s=100.0), updates=4, lag=lag, max_staleness=lag + slack, group_size=2)
    report = bench.run()
    bench.thread.close()
    trained = [e["ticket"] for e in bench.ears.named("group.trained")]
    dropped = {e["ticket"]: e["reason"] for e in bench.ears.named("group.dropped")}
    assert sorted([*trained, *dropped]) == list(range(12))
    assert {ticket for ticket, reason in dropped.items() if reason == "late"} == {3 * block for block in silent}
    assert report.worst_staleness <= lag + slack
    assert set(bench.shelf.ends.values()) == {1}


# -- what it leaves alone ----------------------------------------------------------------------------------------


def entry(ticket, state):
    key = GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=0)
    task = EchoTaskset().task("train", ticket)
    return Entry(group=Group(key), task=task, since=0.0, place=Place(number=ticket, cursor=ticket + 1), state=state)


def board_of(*states, batches=0):
    board = Board(clock=VirtualClock(), batches=batches)
    for ticket, state in enumerate(states):
        board.admit(entry(ticket, state))
    return board


R, S, D = State.RUNNING, State.READY, State.DROPPED


def test_strict_order_lacks_those_of_the_next_batch_that_run():
    order = TicketOrder(groups_per_update=3, lag=1)
    assert order.missing(board_of(R, S, R, R)) == (0, 2)
    assert order.missing(board_of(S, D, S, R)) == ()


@pytest.mark.parametrize(
    ("states", "on_stale", "missing"),
    [
        ((R, S, S, S), "wait", ()),  # the first may be passed over by one batch
        ((R, S, R, S), "wait", (0,)),  # one of the two that run is enough: the oldest
        ((R, R, R, R), "wait", (0, 1, 2)),
        ((R, R, R, S), "drop", (0, 1)),
    ],
)
def test_looking_ahead_lacks_what_a_batch_has_too_few_of(states, on_stale, missing):
    order = Counting(bounds=Bounds(groups_per_update=3, lag=1, max_staleness=2, on_stale=on_stale))
    assert order.missing(board_of(*states)) == missing


def test_looking_ahead_lacks_whatever_is_due():
    order = Counting(bounds=Bounds(groups_per_update=1, lag=1, max_staleness=2))
    assert order.missing(board_of(R, S, R, batches=1)) == (0,)
    assert order.missing(board_of(R, S, R, batches=0)) == ()


def test_a_recorded_batch_lacks_nothing_that_could_be_left_out():
    recorded = Recorded(schedule=TicketOrder(groups_per_update=2, lag=0), batch={1: (0, 1)}.get)
    assert recorded.missing(board_of(R, S)) == ()
    bare = Recorded(schedule=TicketOrder(groups_per_update=2, lag=0), batch={}.get)
    assert bare.missing(board_of(R, S)) == (0,)


def test_a_group_of_a_recorded_batch_is_waited_for(bench):
    bench.latency = lambda turn: 500.0 if turn.rollout.startswith("t000001") else 1.0
    bench.ledger.past = Past(batches={1: (0, 1, 2)})
    bench.set(watchdog=after(promote_s=50.0, shrink_s=100.0), updates=1).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 1, 2]
    assert acts(bench) == []


def test_a_watchdog_without_remedies_sleeps(bench):
    bench.latency = lambda turn: 700.0
    loop = bench.set(watchdog=ASLEEP, updates=1).loop()
    assert (ASLEEP.look_s, loop.config.watchdog.look_s) == (None, None)
    bench.clock.run(loop.run())
    assert acts(bench) == []


def test_a_stop_gives_up_the_silent_and_nothing_else_is_done_about_them(bench):
    bench.latency = stuck("t000001")
    loop = bench.set(watchdog=after(shrink_s=100.0), updates=2).loop()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            await bench.clock.sleep(50)
            loop.stop()
            return await running

    report = bench.clock.run(main())
    assert (report.reason, bench.trainer.batches, acts(bench)) == ("interrupted", [], [])
    silent = [rollout for id, rollout in bench.shelf.rollouts.items() if id.startswith("t000001")]
    assert [rollout.outcome.status for rollout in silent] == [Status.CANCELLED] * 4


# -- its numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("promote_s", 0.0), ("rollout_s", -1.0), ("shrink_s", 0.0), ("restarts", -1)]
)
def test_a_number_that_makes_no_sense_names_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"watchdog\.{key}: got {value}"):
        WatchdogConfig(**{key: value})


def test_it_looks_ten_times_within_its_shortest_wait_and_four_times_a_minute_at_least():
    assert after(rollout_s=50.0, shrink_s=400.0).look_s == 5.0
    assert WatchdogConfig().look_s == LOOK_S == 15.0


def test_by_default_silence_is_acted_on_before_a_wait_ends_the_run_and_nothing_else_is():
    config = PipelineConfig()
    assert config.watchdog.promote_s is None
    assert RolloutLimits().generate_s < config.watchdog.rollout_s < config.watchdog.shrink_s < config.stall_s


def test_a_remedy_says_who_waited_for_what_for_how_long_and_what_was_done():
    assert remedy("restart", wait="the run", lacks="its engine", seconds=2.0) == {
        "wait": "the run", "for": "its engine", "since_s": 2.0, "action": "restart"
    }
