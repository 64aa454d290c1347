"""Configuration, permits, schedule, filters, placebo, the blocking thread, the stage meter."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.limits import Rewards
from treadle.agents.stages import StageMeter
from treadle.core.errors import ConfigError, DeadlineExceeded
from treadle.core.outcome import OK, Origin, Outcome, Status
from treadle.core.ports import Completion, Finish
from treadle.core.seeds import Stream
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import Place
from treadle.pipeline.filters import EnoughValid, ZeroVariance
from treadle.pipeline.permits import Permits
from treadle.pipeline.placebo import PermuteRewards
from treadle.pipeline.schedule import TicketOrder
from treadle.pipeline.stale import masked
from treadle.pipeline.trainer import BlockingThread
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

INFRA = Outcome(status=Status.ERROR, origin=Origin.INFRA)


def act(group, rollout, after, version=0):
    done = Completion(
        ids=np.array([5, 6], np.int32), logprobs=np.zeros(2, np.float32), entropy=np.zeros(2, np.float32),
        versions=((version, 2),), kv_version=version, finish=Finish.STOP,
    )
    group.sampled(rollout, done, after=after, turn=0)


def make_group(scores, ticket=0, version=0):
    """One rollout per score; None is one that the machinery lost."""
    key = GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=version)
    group = Group(key)
    prompt = group.prompt(np.array([1, 2], np.int32))
    for index, score in enumerate(scores):
        rollout = group.begin(index).id
        act(group, rollout, prompt, version=version)
        if score is not None:
            group.pay(rollout, "correct", score)
        group.end(rollout, INFRA if score is None else OK)
    return group


def test_max_staleness_below_lag_names_both_keys():
    with pytest.raises(ConfigError, match=r"pipeline\.max_staleness=0 contradicts pipeline\.lag=1"):
        PipelineConfig(lag=1, max_staleness=0)


@pytest.mark.parametrize("key", ["group_size", "groups_per_update", "lag", "min_valid", "stall_s"])
def test_numbers_out_of_range_are_named(key):
    with pytest.raises(ConfigError, match=rf"pipeline\.{key}"):
        PipelineConfig(**{key: -1})


def test_max_staleness_defaults_to_lag():
    assert PipelineConfig(lag=2).staleness_bound == 2
    assert PipelineConfig(lag=1, max_staleness=4).staleness_bound == 4


def test_a_permit_that_is_not_free_cannot_be_taken():
    permits = Permits(1)
    permits.take(0)
    with pytest.raises(AssertionError, match="1 of 1 permits are out"):
        permits.take(1)


def test_a_permit_is_given_back_once():
    permits = Permits(2)
    permits.take(0)
    permits.give_back(0)
    with pytest.raises(KeyError):
        permits.give_back(0)
    assert (permits.free, permits.most) == (2, 1)


def entry(ticket):
    return Entry(
        group=make_group([1.0, 0.0], ticket), task=EchoTaskset().task("train", ticket), since=0.0,
        place=Place(number=ticket, cursor=ticket + 1),
    )


def test_a_batch_waits_for_its_slowest_ticket():
    board, order = Board(clock=VirtualClock()), TicketOrder(groups_per_update=2, lag=1)
    first, second, third = (entry(i) for i in range(3))
    for one in (first, second, third):
        board.admit(one)
    for one in (second, third):
        board.move(one, State.GENERATED)
        board.move(one, State.READY)
    assert order.select(board) is None
    board.move(first, State.DROPPED, reason="cancelled")
    assert order.select(board) == (0, 1)


def test_a_ticket_starts_at_most_lag_batches_early():
    board, order = Board(clock=VirtualClock()), TicketOrder(groups_per_update=2, lag=1)
    for ticket in range(4):
        assert order.admit(board)
        board.admit(entry(ticket))
    assert not order.admit(board)
    board.batches = 1
    assert order.admit(board)


def test_a_ticket_reaches_only_one_end():
    board = Board(clock=VirtualClock())
    one = entry(0)
    board.admit(one)
    board.move(one, State.DROPPED, reason="failed")
    with pytest.raises(AssertionError, match="dropped -> trained"):
        board.move(one, State.TRAINED)


def test_a_wait_that_sees_work_under_way_goes_on():
    clock = VirtualClock()

    async def main():
        board = Board(clock=clock)
        board.occupied = "update 1"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(board.until(lambda: board.batches == 1, what="a pump", stall_s=10))
            await clock.sleep(95)
            board.batches = 1
            board.touch()
        return clock.now()

    assert clock.run(main()) == pytest.approx(95)


@pytest.mark.parametrize(
    ("scores", "reason"),
    [([1, 0, 0, 0], None), ([1, 0, None, 1], None), ([1, 0, None, None], "min_valid"), ([1, None, None, None],
     "singleton"), ([None] * 4, "failed")],
)
def test_enough_valid(scores, reason):
    check = EnoughValid(group_size=4, min_valid=0.75, min_rollouts=2)
    assert check(make_group(scores)) == reason


def test_a_rule_for_single_rollouts_takes_groups_of_one():
    assert EnoughValid(group_size=1, min_valid=0.75, min_rollouts=1)(make_group([1.0])) is None


def test_variance_is_that_of_the_main_part():
    check = ZeroVariance(rewards=Rewards(main="correct"))
    assert check(make_group([1, 1, 1])) == "zero_variance"
    assert check(make_group([1, 1, None])) == "zero_variance"
    assert check(make_group([1, 0, 1])) is None


@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=8), st.integers(0, 50))
def test_for_all_groups_the_placebo_deals_out_the_same_rewards(scores, seed):
    group = make_group(scores)
    before = [r.reward for r in group.valid]
    dealt = PermuteRewards(seed=Stream(seed))(group)
    assert sorted(Forest.of([dealt]).returns) == pytest.approx(sorted(before))
    assert [r.reward for r in dealt.valid] == pytest.approx(list(Forest.of([dealt]).returns))
    assert [r.reward for r in group.valid] == before


def test_the_placebo_really_permutes_and_repeats():
    group = make_group([0, 1, 2, 3, 4, 5, 6, 7])
    deal = PermuteRewards(seed=Stream(3))
    assert [r.reward for r in deal(group).valid] != [r.reward for r in group.valid]
    assert [r.reward for r in deal(group).valid] == [r.reward for r in deal(group).valid]


def test_failed_rollouts_get_nothing_from_the_placebo():
    dealt = PermuteRewards(seed=Stream(1))(make_group([1, None, 0]))
    assert [r.index for r in dealt.valid] == [0, 2]


def test_the_placebo_deals_to_a_rollout_whose_every_action_is_too_old():
    group = make_group([0, 1], version=3)
    late = group.begin(2).id
    act(group, late, next(s for s in group.segments.values() if s.rollout is None), version=5)
    group.pay(late, "correct", 4.0)
    group.end(late, OK)
    left = masked(group, oldest=5)
    assert left is not None
    dealt = Forest.of([PermuteRewards(seed=Stream(1))(left)])
    assert sorted(dealt.returns) == [0.0, 1.0, 4.0]


def test_the_placebo_deals_out_what_probes_found_among_them():
    group = make_group([0, 1])
    prompt = next(s for s in group.segments.values() if s.rollout is None)
    for index, found in enumerate((3.0, 5.0, 10.0), 2):
        probe = group.fork("t0.0.0", index, at=prompt, probe=True).id
        act(group, probe, prompt)
        group.pay(probe, "correct", found)
        group.end(probe, OK)
    dealt = PermuteRewards(seed=Stream(1))(group)
    assert group.probed == dealt.probed == {prompt.id: 6.0}
    assert sorted(r.value for r in dealt.records if dealt.rollouts[r.rollout].probe) == [3.0, 5.0, 10.0]


async def test_a_blocking_call_leaves_the_loop_free():
    go = threading.Event()
    with BlockingThread() as thread:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(thread.call("test", lambda: go.wait(5), deadline_s=5))
            await asyncio.sleep(0)
            go.set()
    assert work.result() is True


async def test_a_blocking_call_past_its_deadline_is_named():
    go = threading.Event()
    with BlockingThread() as thread:
        with pytest.raises(DeadlineExceeded, match=r"saving: not finished after 0\.01 s"):
            await thread.call("saving", lambda: go.wait(5), deadline_s=0.01)
        go.set()


async def test_a_timeout_raised_inside_is_not_mistaken_for_the_deadline():
    def fail():
        raise TimeoutError("from inside")

    with BlockingThread() as thread, pytest.raises(TimeoutError, match="from inside"):
        await thread.call("test", fail, deadline_s=5)


def test_a_stage_is_busy_while_anyone_is_in_it():
    clock = VirtualClock()
    meter = StageMeter(clock)

    async def stay(begin, seconds):
        await clock.sleep(begin)
        with meter.busy("env"):
            await clock.sleep(seconds)

    async def main():
        meter.read()
        async with asyncio.TaskGroup() as tasks:
            for begin, seconds in ((0, 4), (2, 4), (8, 1)):
                tasks.create_task(stay(begin, seconds))
            await clock.sleep(10)
        return meter.read()

    window = clock.run(main())
    assert window.busy["env"] == pytest.approx(7)
    assert window.idle_share("env") == pytest.approx(0.3)
    assert window.idle_share("update") == 1.0


def test_a_window_that_ends_inside_a_stage_splits_its_time():
    clock = VirtualClock()
    meter = StageMeter(clock)

    async def main():
        meter.read()
        with meter.busy("generate"):
            await clock.sleep(3)
            first = meter.read()
            await clock.sleep(2)
        return first.busy["generate"], meter.read().busy["generate"]

    assert clock.run(main()) == pytest.approx((3, 2))
