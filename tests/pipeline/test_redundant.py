"""Redundant groups: the first that are ready train, the slow ones are given up once, a run that goes on knows which."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle import Env, Recipe, World
from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Place
from treadle.pipeline.redundant import Redundant
from treadle.pipeline.schedule import Bounds
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey


def order(*, size=2, lag=0, updates=None):
    bounds = Bounds(groups_per_update=size, lag=lag, max_staleness=lag, updates=updates)
    return Redundant().begin(bounds, rewards=Rewards())


def board_of(marks):
    """A ticket for each letter: r(unning), R(eady) or d(ropped)."""
    board = Board(clock=VirtualClock())
    states = {"r": State.RUNNING, "R": State.READY, "d": State.DROPPED}
    for ticket, mark in enumerate(marks):
        key = GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=0)
        board.admit(Entry(
            group=Group(key), task=EchoTaskset().task("train", ticket), since=0.0, state=states[mark],
            place=Place(number=ticket, cursor=ticket + 1),
        ))
    return board


def mixed(turn):
    """Every second member says the right thing."""
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


@pytest.mark.parametrize(
    ("marks", "given_up", "batch"),
    [
        ("rrr", (), None), ("Rrr", (), None), ("RRr", (2,), None), ("rRR", (0,), None), ("RRd", (), (0, 1, 2)),
        ("RRR", (), (0, 1, 2)), ("Rdr", (), None), ("Rdd", (), (0, 1, 2)), ("RR", (), None),
        ("RRrRRR", (2,), None), ("dddRRr", (), (0, 1, 2)),
    ],
)
def test_the_slow_are_given_up_when_enough_are_ready(marks, given_up, batch):
    board = board_of(marks)
    assert (order().evict(board), order().select(board)) == (given_up, batch)


@pytest.mark.parametrize(("marks", "lacking"), [("rRR", (0,)), ("Rrr", (1, 2)), ("RRRr", ()), ("Rdd", ())])
def test_a_batch_lacks_what_still_runs_of_it(marks, lacking):
    assert order().missing(board_of(marks)) == lacking


@pytest.mark.parametrize(
    ("marks", "lag", "updates", "starts"),
    [("rr", 0, None, True), ("rrr", 0, None, False), ("rrrrr", 1, None, True), ("rrrrrr", 1, None, False),
     ("rrr", 1, 1, False)],
)
def test_a_ticket_starts_when_its_batch_is_near_and_of_the_run(marks, lag, updates, starts):
    assert order(lag=lag, updates=updates).admit(board_of(marks)) is starts


def slow_third(turn):
    """Every third ticket takes long."""
    return 50.0 if int(turn.rollout[1:7]) % 3 == 2 else 1.0


@pytest.mark.parametrize("lag", [0, 1])
def test_an_update_waits_for_no_slow_group(bench, lag):
    bench.script, bench.latency = mixed, slow_third
    bench.set(schedule=Redundant(), groups_per_update=2, updates=3, lag=lag).run()
    assert [b["tickets"] for b in bench.trainer.batches] == [[0, 1], [3, 4], [6, 7]]
    assert [e["ticket"] for e in bench.ears.named("group.dropped") if e["reason"] == "cancelled"] == [2, 5, 8]
    assert bench.clock.now() < 50


def test_spare_groups_take_the_place_of_dropped_ones(bench):
    bench.script = lambda turn: "yes" if int(turn.rollout[1:7]) % 3 == 0 else mixed(turn)
    bench.set(schedule=Redundant(), groups_per_update=2, updates=2).run()
    assert [b["tickets"] for b in bench.trainer.batches] == [[1, 2], [4, 5]]


@settings(max_examples=25, deadline=None)
@given(
    lag=st.integers(0, 2), groups=st.integers(1, 3), extra=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.4, 0.9]),
)
def test_for_all_latencies_the_bound_holds_and_every_ticket_ends_once(make_bench, lag, groups, extra, seed, share):
    bench = make_bench()
    bench.script = lambda turn: "yes" if Stream(seed).at(turn.rollout[:7]).uniform(0) < share else mixed(turn)
    bench.latency = lambda turn: Stream(seed).at(turn.rollout).python().lognormvariate(0.0, 1.5)
    bench.set(lag=lag, groups_per_update=groups, updates=5, group_size=2, schedule=Redundant(share=extra))
    report = bench.run()
    bench.thread.close()
    assert (report.updates, report.worst_staleness <= lag) == (5, True)
    assert report.most_outstanding <= bench.config.permits
    assert {e["reason"] for e in bench.ears.named("group.dropped")} <= {"zero_variance", "cancelled"}
    ends = Counter(e["ticket"] for kind in ("group.trained", "group.dropped") for e in bench.ears.named(kind))
    assert ends == Counter(range(5 * (groups + math.ceil(extra * groups))))
    assert set(bench.shelf.ends.values()) == {1}


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_spares_nothing_or_more_than_is_needed_is_refused(share):
    with pytest.raises(ConfigError, match=r"schedule\.share: got .*, expected a share in \(0, 1\]"):
        Redundant(share=share)


def test_deterministic_mode_refuses_it():
    world = World(tasks=EchoTaskset(("yes",)), env=Env)
    with pytest.raises(ConfigError, match=r"pipeline\.schedule=redundant contradicts deterministic=true"):
        Recipe(name="r", world=world, deterministic=True, pipeline=PipelineConfig(schedule=Redundant()))
