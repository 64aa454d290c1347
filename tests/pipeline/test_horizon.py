"""The horizon schedule: a function of the ticket, an ending like every other limit, the same after an interruption."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError, EngineError
from treadle.core.outcome import OK, limit
from treadle.pipeline.checkpoints import Mark
from treadle.pipeline.horizon import Horizon
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.group import Group, GroupKey


def test_turns_grow_in_equal_steps_to_the_limit():
    plan = Horizon(first=1, updates=6)
    assert [plan.turns(update, last=4) for update in range(9)] == [1, 1, 2, 2, 3, 3, 4, 4, 4]


def test_more_steps_than_updates_are_taken_together():
    assert [Horizon(first=2, updates=2).turns(update, last=8) for update in range(4)] == [2, 5, 8, 8]


def test_a_horizon_that_begins_at_the_limit_changes_nothing():
    assert {Horizon(first=4, updates=5).turns(update, last=4) for update in range(9)} == {4}


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 30), st.integers(0, 80))
def test_for_all_plans_turns_never_shrink_and_stay_between_their_ends(first, updates, more, update):
    plan, last = Horizon(first=first, updates=updates), first + more
    now, next_ = plan.turns(update, last=last), plan.turns(update + 1, last=last)
    assert first <= now <= next_ <= last
    assert plan.turns(0, last=last) == first
    assert plan.turns(updates, last=last) == last


@pytest.mark.parametrize("key", ["first", "updates"])
def test_numbers_out_of_range_are_named(key):
    with pytest.raises(ConfigError, match=rf"horizon\.{key}: got 0, expected >= 1"):
        Horizon(**{key: 0})


@pytest.mark.parametrize(("most", "said"), [(None, "none"), (2, "2")])
def test_a_limit_that_it_cannot_grow_to_is_named(most, said):
    with pytest.raises(ConfigError, match=rf"pipeline\.horizon\.first=3 contradicts limits\.max_turns={said}"):
        Horizon(first=3).require(RolloutLimits(max_turns=most))


# -- in the loop -----------------------------------------------------------------------------------------------


@pytest.fixture
def long(bench):
    """A world of six turns, of which the limits allow three, and the horizon first one."""
    bench.taskset = EchoTaskset(("yes",), data={"turns": 6})
    bench.limits = RolloutLimits(max_turns=3)
    return bench.set(groups_per_update=2, updates=4, horizon=Horizon(first=1, updates=4))


def turns_of(bench):
    """Ticket to the turns of its rollouts."""
    found = defaultdict(set)
    for e in bench.ears.named("rollout.done"):
        found[int(e["group"][1:])].add(e["turns"])
    return dict(found)


GROWN = {0: {1}, 1: {1}, 2: {1}, 3: {1}, 4: {2}, 5: {2}, 6: {2}, 7: {2}}


def test_all_rollouts_of_a_ticket_have_its_horizon(long):
    long.run()
    assert turns_of(long) == GROWN


def test_a_rollout_that_reaches_it_is_truncated_scored_and_trained(long):
    long.set(updates=1).run()
    ends = {r.outcome for r in long.shelf.rollouts.values()}
    assert ends == {limit("turns", "1 turns")}
    assert long.trainer.batches[0]["rewards"] == [[0.0, 1.0, 0.0, 1.0]] * 2


def test_a_rollout_that_ends_before_it_is_not_touched(long):
    long.taskset = EchoTaskset(("yes",), data={"turns": 1})
    long.set(updates=1).run()
    assert {r.outcome for r in long.shelf.rollouts.values()} == {OK}


def test_lag_and_latencies_change_nothing(long):
    long.latency = lambda turn: 1.0 + sum(map(ord, turn.rollout)) % 7
    long.set(lag=1).run()
    assert turns_of(long) == GROWN


def test_a_run_that_goes_on_allows_what_it_would_have_allowed(long):
    engine = long.engine()
    engine.version = long.trainer.version = 2
    long.run(engine=engine, begin=Mark(stage="rl", update=2))
    assert turns_of(long) == {ticket: turns for ticket, turns in GROWN.items() if ticket >= 4}


def test_an_attempt_that_follows_a_failure_has_the_same_horizon(long):
    def script(turn):
        _, index, attempt = turn.rollout.split(".")
        return EngineError("lost") if attempt == "0" else "yes" if int(index) % 2 else "no"

    long.script = script
    long.set(updates=1).run()
    again = [r.outcome for r in long.shelf.rollouts.values() if r.attempt == 1]
    assert again == [limit("turns", "1 turns")] * 8


def test_groups_that_are_played_without_a_horizon_have_only_their_limits(long):
    player = long.player(long.engine(), size=1)
    task = long.taskset.task("train", 0)
    group = long.clock.run(player.play(new_group(task), task))
    assert [r.outcome.message for r in group.valid] == ["3 turns"]


def new_group(task):
    return Group(GroupKey(id="t000000", ticket=0, task=task.id, family="", split="train", admitted_version=0))
