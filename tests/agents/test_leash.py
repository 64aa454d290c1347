"""A leash: what an attempt waits for, since when it has made nothing, and how it is given up from outside."""

import asyncio
from dataclasses import replace

import pytest

from treadle.agents.group_player import RetryBudget
from treadle.agents.leash import Leash
from treadle.core.outcome import Origin, Outcome, Status
from treadle.envs.host import HostConfig

SILENT = Outcome(status=Status.ERROR, origin=Origin.INFRA, type="silent", message="as told")


def cut_after(stage, engine, seconds, *, data=None, and_then=lambda task: None):
    """Give one attempt up after so many seconds: its leash, its group, what it waited for, and its task."""
    leash, group = Leash.begin(stage.clock), stage.group()

    async def main():
        plan = replace(stage.plan(data=data), leash=leash)
        async with asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(stage.player(engine).play(group, plan))
            await stage.clock.sleep(seconds)
            waited = leash.waits_for
            assert leash.cut(SILENT)
            assert not leash.cut(SILENT)
            and_then(playing)
        return waited, playing

    return leash, group, *stage.clock.run(main())


def test_an_attempt_that_is_given_up_ends_as_it_was_told(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 500.0)
    leash, _, waited, task = cut_after(stage, engine, 10.0)
    rollout = task.result()
    assert (rollout.outcome, rollout.reward) == (SILENT, None)
    assert (waited, engine.cancelled) == ("engine", 1)
    assert stage.clock.now() == pytest.approx(10.0)
    assert not leash.cut(SILENT)


def test_an_environment_that_hangs_is_closed_when_its_attempt_is_given_up(stage):
    stage.host = HostConfig(step_s=1e6)
    _, group, waited, task = cut_after(stage, stage.engine(["yes"]), 10.0, data={"fault": "hang"})
    assert (waited, task.result().outcome) == ("environment", SILENT)
    assert [rollout.outcome for rollout in group.rollouts.values()] == [SILENT]


def test_a_cancellation_at_the_same_time_passes_on(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 500.0)
    _, group, _, task = cut_after(stage, engine, 10.0, and_then=lambda task: task.cancel())
    assert task.cancelled()
    assert [rollout.outcome.status for rollout in group.rollouts.values()] == [Status.CANCELLED]


def test_every_segment_is_a_sign_of_life(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 3.0)
    leash = Leash.begin(stage.clock)
    stage.clock.run(stage.player(engine).play(stage.group(), replace(stage.plan(data={"turns": 2}), leash=leash)))
    assert (leash.since, leash.quiet_since, leash.made, leash.waits_for) == (6.0, 6.0, True, "grader")


def test_an_attempt_after_one_that_was_given_up_is_as_quiet_as_that_was(stage):
    first = Leash(clock=stage.clock, since=0.0, quiet_since=0.0)
    stage.clock.advance_to(50.0)
    assert Leash.begin(stage.clock, after=first).quiet_since == 50.0
    first.outcome = SILENT
    again = Leash.begin(stage.clock, after=first)
    assert (again.since, again.quiet_since, again.made) == (50.0, 0.0, False)


def test_a_group_lists_what_it_plays_and_gives_up_one_member_alone(stage):
    group = stage.group()
    engine = stage.engine(["yes"], latency=lambda turn: 500.0 if turn.rollout == "g0.1.0" else 20.0)
    players = stage.groups(engine, size=3, retries=RetryBudget(infra=1, env=0))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(players.play(group, stage.plan().task))
            await stage.clock.sleep(10)
            assert sorted(players.playing) == ["g0.0.0", "g0.1.0", "g0.2.0"]
            assert not players.made_since(-1.0)
            await stage.clock.sleep(20)
            assert sorted(players.playing) == ["g0.1.0"]
            players.playing["g0.1.0"].cut(SILENT)

    stage.clock.run(main())
    assert players.playing == {}
    assert {id: rollout.outcome.type for id, rollout in group.rollouts.items()} == {
        "g0.0.0": "", "g0.1.0": "silent", "g0.2.0": "", "g0.1.1": ""
    }
    assert [rollout.id for rollout in group.valid] == ["g0.0.0", "g0.1.1", "g0.2.0"]
