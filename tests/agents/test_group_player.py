"""One ticket: shared prompt, retries on their own budgets, nobody ends anybody else."""

import asyncio

import pytest

from treadle.agents.group_player import RetryBudget
from treadle.core.errors import EngineError
from treadle.core.outcome import Origin, Status
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.trajectory.segment import Why


class Watcher:
    def __init__(self):
        self.heard = []

    def ended(self, group, rollout, task, *, retried):
        self.heard.append((rollout.id, rollout.outcome.status, retried))


def task(word="yes", **data):
    return EchoTaskset((word,), data=data).task("train", 0)


def play(stage, engine, *, data=None, group=None, **options):
    group = group or stage.group()
    stage.clock.run(stage.groups(engine, **options).play(group, task(**(data or {}))))
    return group


def test_all_members_share_one_prompt_segment(stage):
    group = play(stage, stage.engine(["yes"]), size=5)
    prompts = [s for s in group.segments.values() if s.why is Why.PROMPT]
    assert len(prompts) == 1
    firsts = {s.parent for s in group.segments.values() if s.turn == 0 and s.is_action}
    assert firsts == {prompts[0].id}


def test_members_play_at_the_same_time(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 10.0)
    play(stage, engine, size=6)
    assert engine.most_running == 6
    assert stage.clock.now() == pytest.approx(10.0)


def test_members_sample_from_different_streams_and_start_from_equal_seeds(stage):
    seeds = []

    class Noting(EchoEnv):
        async def reset(self, task, ctx):
            seeds.append(ctx.seed)
            return await super().reset(task, ctx)

    engine = stage.engine(["yes"])
    play(stage, engine, size=3, env=Noting)
    assert len({r.stream for r in engine.requests}) == 3
    assert len(set(seeds)) == 1


def test_the_trunk_is_the_groups_prompt(stage):
    engine = stage.engine(["yes"])
    group = play(stage, engine, size=2)
    prompt = next(s for s in group.segments.values() if s.rollout is None)
    assert {(r.cache.trunk, r.cache.trunk_len) for r in engine.requests} == {("g0", len(prompt))}
    assert engine.released.count("g0") == 1


def test_one_broken_member_leaves_its_siblings_alone(stage):
    def script(turn):
        return EngineError("lost") if turn.rollout.startswith("g0.1.") else "yes"

    group = play(stage, stage.engine(script), size=4, retries=RetryBudget(infra=0))
    assert [r.index for r in group.valid] == [0, 2, 3]


def test_an_infra_failure_is_played_again_as_another_attempt(stage):
    watcher = Watcher()
    lost = {"g0.0.0", "g0.0.1"}
    engine = stage.engine(lambda turn: EngineError("lost") if turn.rollout in lost else "yes")
    group = play(stage, engine, size=1, retries=RetryBudget(infra=2, env=0), watcher=watcher)
    assert [(r.id, r.attempt) for r in group.valid] == [("g0.0.2", 2)]
    assert watcher.heard == [
        ("g0.0.0", Status.ERROR, True), ("g0.0.1", Status.ERROR, True), ("g0.0.2", Status.OK, False)
    ]
    assert [r.stream.path[4:6] for r in engine.requests] == [("attempt", 0), ("attempt", 1), ("attempt", 2)]


@pytest.mark.parametrize(
    ("fault", "budget", "attempts"), [("infra", (3, 0), 4), ("step", (0, 2), 3), ("step", (5, 0), 1)]
)
def test_each_kind_of_failure_has_its_own_budget(stage, fault, budget, attempts):
    retries = RetryBudget(infra=budget[0], env=budget[1])
    group = play(stage, stage.engine(["yes"]), size=1, retries=retries, data={"fault": fault})
    assert len(group.rollouts) == attempts
    assert group.valid == []


def test_a_failed_grading_is_not_played_again(stage):
    group = play(stage, stage.engine(["yes"]), size=1, data={"fault": "score"})
    assert [r.outcome.origin for r in group.rollouts.values()] == [Origin.GRADER]


def test_a_prompt_that_is_too_long_is_not_played_again(stage):
    from treadle.agents.limits import RolloutLimits

    group = play(stage, stage.engine(["yes"]), size=1, limits=RolloutLimits(max_context=3))
    assert len(group.rollouts) == 1


def test_infra_retries_wait_longer_each_time(stage):
    play(stage, stage.engine(["yes"]), size=1, data={"fault": "infra"}, retries=RetryBudget(infra=3, wait_s=1.0))
    assert stage.clock.now() == pytest.approx(1 + 2 + 4)


def test_cancelling_a_group_ends_every_member_as_cancelled(stage):
    watcher, group = Watcher(), stage.group()
    player = stage.groups(stage.engine(["yes"], latency=lambda turn: 50.0), size=3, watcher=watcher)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(player.play(group, task()))
            await stage.clock.sleep(1)
            running.cancel()

    stage.clock.run(main())
    assert {r.outcome.status for r in group.rollouts.values()} == {Status.CANCELLED}
    assert len(watcher.heard) == 3


def test_spare_members_let_the_slowest_be_cancelled_once(stage):
    heard = Watcher()
    engine = stage.engine(["yes"], latency=lambda turn: 100.0 if turn.rollout.split(".")[1] in "13" else 1.0)
    group = play(stage, engine, size=4, spare=2, watcher=heard)
    assert stage.clock.now() == pytest.approx(1.0)
    assert sorted(r.index for r in group.valid) == [0, 2, 4, 5]
    assert sorted(status for _, status, _ in heard.heard) == [Status.CANCELLED] * 2 + [Status.OK] * 4
    assert engine.cancelled == 2


def test_spare_members_stand_in_for_failed_ones(stage):
    engine = stage.engine(lambda turn: EngineError("lost") if turn.rollout.split(".")[1] == "0" else "yes")
    group = play(stage, engine, size=2, spare=1, retries=RetryBudget(infra=0, env=0))
    assert [r.index for r in group.valid] == [1, 2]
    assert {r.outcome.status for r in group.rollouts.values()} == {Status.ERROR, Status.OK}


def test_a_group_that_holds_enough_is_not_played_with_spare_members(stage):
    group = stage.group()
    play(stage, stage.engine(["yes"]), size=2, group=group)
    play(stage, engine := stage.engine(["yes"]), size=2, spare=1, group=group)
    assert engine.requests == []


def test_what_a_group_holds_already_is_not_played_again(stage):
    whole = play(stage, stage.engine(["yes"]), size=3)
    group = stage.group()
    stage.play(stage.engine(["yes"]), group=group)
    watcher = Watcher()
    play(stage, engine := stage.engine(["yes"]), size=3, group=group, watcher=watcher)
    assert sorted(id for id, _, _ in watcher.heard) == ["g0.1.0", "g0.2.0"]
    assert len(engine.requests) == 2
    assert {r.id: r.reward for r in group.valid} == {r.id: r.reward for r in whole.valid}


def test_retries_go_on_where_they_were(stage):
    group = stage.group()
    stage.play(stage.engine([EngineError("lost")]), group=group)
    play(stage, engine := stage.engine(["yes"]), size=1, group=group)
    assert sorted(group.rollouts) == ["g0.0.0", "g0.0.1"]
    assert [r.stream.path[-5:] for r in engine.requests] == [("attempt", 1, "turn", 0, "sample")]


def test_a_spent_budget_stays_spent(stage):
    group = stage.group()
    stage.play(stage.engine([EngineError("lost")]), group=group)
    play(stage, engine := stage.engine(["yes"]), size=1, group=group, retries=RetryBudget(infra=0))
    assert engine.requests == []
