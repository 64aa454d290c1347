"""One rollout: what is stored, how it ends, what it is paid."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from treadle.agents.limits import CHARS_PER_TOKEN, Rewards, RolloutLimits
from treadle.core.errors import ConfigError, EngineError, PromptTooLong
from treadle.core.messages import system, user
from treadle.core.outcome import Origin, Status
from treadle.envs.host import HostConfig
from treadle.envs.step import Step
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoEnv
from treadle.trajectory.segment import Author


def test_a_solved_task_is_ok_and_paid_on_its_last_action(stage):
    group, rollout = stage.play(stage.engine(["yes"]))
    assert (rollout.outcome.status, rollout.reward) == (Status.OK, 1.0)
    assert group.segments[group.records[0].segment].author is Author.POLICY


def test_the_next_prompt_extends_what_was_sampled(stage):
    engine = stage.engine(["no", "maybe", "yes"])
    group, rollout = stage.play(engine, data={"turns": 3})
    prompts = [request.prompt for request in engine.requests]
    for earlier, later in pairwise(prompts):
        assert np.array_equal(later[: len(earlier)], earlier)
    last = group.path(rollout.leaves[-1])
    assert np.array_equal(group.context_ids(last[-2].id), prompts[-1])


def test_the_path_reads_as_the_conversation(stage):
    group, rollout = stage.play(stage.engine(["no", "yes"]), data={"turns": 2})
    assert ByteRenderer().decode(group.context_ids(rollout.leaves[-1])) == "say yesnoyou said noyes"


def test_what_the_world_says_after_the_last_action_is_not_stored(stage):
    group, rollout = stage.play(stage.engine(["yes"]))
    assert group.segments[rollout.leaves[-1]].author is Author.POLICY


def test_turns_draw_from_their_own_streams(stage):
    engine = stage.engine(["no", "yes"])
    stage.play(engine, data={"turns": 2})
    assert [r.stream.path[-3:] for r in engine.requests] == [("turn", 0, "sample"), ("turn", 1, "sample")]


def test_the_turn_limit_truncates_and_scores(stage):
    _, rollout = stage.play(stage.engine(["yes"]), data={"turns": 5}, limits=RolloutLimits(max_turns=2))
    assert (rollout.outcome.status, rollout.outcome.type, rollout.reward) == (Status.TRUNCATED, "turns", 1.0)


def test_a_turn_that_its_limit_cut_off_is_not_run(stage):
    heard = []

    class Listening(EchoEnv):
        async def step(self, action):
            heard.append(action.text)
            return await super().step(action)

    group, rollout = stage.play(
        stage.engine(["yes and on and on"]), env=Listening, limits=RolloutLimits(max_tokens_per_turn=3)
    )
    assert (rollout.outcome.status, rollout.outcome.type, rollout.reward) == (Status.TRUNCATED, "tokens", 0.0)
    assert heard == []
    assert len(group.segments[rollout.leaves[-1]]) == 3


def test_a_full_context_truncates_and_scores(stage):
    _, rollout = stage.play(stage.engine(["yes"]), data={"turns": 9}, limits=RolloutLimits(max_context=30))
    assert (rollout.outcome.type, rollout.reward) == ("context", 1.0)


def test_no_completion_is_asked_to_pass_the_context(stage):
    engine = stage.engine(["long words " * 9])
    _, rollout = stage.play(engine, limits=RolloutLimits(max_context=40))
    request = engine.requests[0]
    assert len(request.prompt) + request.sampling.max_tokens == 40
    assert rollout.outcome.type == "context"


def test_a_prompt_longer_than_the_context_is_the_tasks_fault(stage):
    _, rollout = stage.play(stage.engine(["yes"]), limits=RolloutLimits(max_context=4))
    assert (rollout.outcome.origin, rollout.outcome.type, rollout.reward) == (Origin.ENV, "PromptTooLong", None)
    assert "limits.max_context" in rollout.outcome.message


def test_text_that_is_too_long_to_tokenise_is_not_tokenised(stage, monkeypatch):
    long = "x" * (200 * CHARS_PER_TOKEN + 1)

    class Loud(EchoEnv):
        async def reset(self, task, ctx):
            await super().reset(task, ctx)
            return [user(long if task.data["turns"] == 1 else "go")]

        async def step(self, action):
            return Step(messages=(user(long),))

    plain = ByteRenderer._written
    monkeypatch.setattr(ByteRenderer, "_written", lambda self, m: plain(m) if long not in str(m) else 1 / 0)
    ends = []
    for turns in (1, 2):
        _, rollout = stage.play(
            stage.engine(["yes"]), env=Loud, data={"turns": turns}, limits=RolloutLimits(max_context=200)
        )
        ends.append((rollout.outcome.origin, rollout.outcome.type))
    assert ends == [(Origin.ENV, "PromptTooLong"), (Origin.LIMIT, "context")]


@pytest.mark.parametrize(
    ("fault", "origin"),
    [("reset", Origin.ENV), ("step", Origin.ENV), ("infra", Origin.INFRA), ("score", Origin.GRADER)],
)
def test_a_failing_world_ends_the_rollout_unscored(stage, fault, origin):
    _, rollout = stage.play(stage.engine(["yes"]), data={"fault": fault})
    assert (rollout.outcome.status, rollout.outcome.origin) == (Status.ERROR, origin)
    assert rollout.reward is None
    assert not rollout.trains


def test_a_hanging_world_meets_its_deadline(stage):
    stage.host = HostConfig(step_s=20)
    _, rollout = stage.play(stage.engine(["yes"]), data={"fault": "hang"})
    assert rollout.outcome.origin is Origin.ENV
    assert 20 <= stage.clock.now() < 60


def test_an_engine_failure_is_the_machinerys(stage):
    _, rollout = stage.play(stage.engine([EngineError("broken")]))
    assert (rollout.outcome.origin, rollout.outcome.message) == (Origin.INFRA, "broken")


def test_an_engine_that_refuses_the_prompt_is_not_retried_for_ever(stage):
    _, rollout = stage.play(stage.engine([PromptTooLong("20 tokens, room for 10")]))
    assert rollout.outcome.type == "PromptTooLong"


def test_an_engine_that_never_answers_is_given_up(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 1e6)
    _, rollout = stage.play(engine, limits=RolloutLimits(generate_s=50))
    assert (rollout.outcome.origin, rollout.outcome.type) == (Origin.INFRA, "DeadlineExceeded")
    assert engine.cancelled == 1


def test_an_unexpected_error_ends_only_the_rollout(stage):
    _, rollout = stage.play(stage.engine([ValueError("a bug")]))
    assert (rollout.outcome.origin, rollout.outcome.type) == (Origin.INFRA, "ValueError")


def test_cancellation_closes_the_world_and_passes_on(stage):
    closed = []

    class Closing(EchoEnv):
        async def close(self):
            closed.append(True)

    group = stage.group()
    engine = stage.engine(["yes"], latency=lambda turn: 100.0)
    player = stage.player(engine, env=Closing)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(player.play(group, stage.plan()))
            await stage.clock.sleep(1)
            task.cancel()
        return task.cancelled()

    assert stage.clock.run(main())
    assert closed == [True]
    assert group.rollouts["g0.0.0"].outcome.status is Status.CANCELLED
    assert engine.released == ["g0.0.0"]


def test_only_named_parts_train(stage):
    class Rich(EchoEnv):
        async def score(self):
            return {"correct": 1.0, "turns": -0.5}

    rewards = Rewards(main="correct", train=("correct",))
    _, rollout = stage.play(stage.engine(["yes"]), env=Rich, rewards=rewards)
    assert (rollout.reward, dict(rollout.rewards)) == (1.0, {"correct": 1.0, "turns": -0.5})
    assert rewards.solved(rollout)


def test_step_rewards_sit_on_their_own_action(stage):
    class Paying(EchoEnv):
        async def step(self, action):
            step = await super().step(action)
            return Step(messages=step.messages, terminated=step.terminated, reward=0.25 * len(self.heard))

    group, rollout = stage.play(stage.engine(["no", "yes"]), data={"turns": 2}, env=Paying)
    turns = {group.segments[r.segment].turn: r.value for r in group.records if r.name == "step"}
    assert turns == {0: 0.25, 1: 0.5}
    assert rollout.reward == pytest.approx(1.75)


def test_a_world_without_a_score_does_not_train(stage):
    class Silent(EchoEnv):
        async def score(self):
            return None

    _, rollout = stage.play(stage.engine(["yes"]), env=Silent)
    assert (rollout.outcome.status, rollout.reward, rollout.trains) == (Status.OK, None, False)


def test_seconds_are_kept_per_stage(stage):
    engine = stage.engine(["yes"], latency=lambda turn: 3.0)
    _, rollout = stage.play(engine, data={"turns": 2, "latency": 1.5})
    assert rollout.seconds["generate"] == pytest.approx(6.0)
    assert rollout.seconds["env"] == pytest.approx(3.0)


def test_the_state_key_is_the_state_the_action_was_taken_in(stage):
    group, _ = stage.play(stage.engine(["no", "yes"]), data={"turns": 2})
    keys = [s.state_key for s in group.segments.values() if s.author is Author.POLICY]
    assert keys == [None, "1"]


def test_a_member_that_starts_from_another_prompt_is_refused(stage):
    starts = iter("ab")

    class Different(EchoEnv):
        async def reset(self, task, ctx):
            await super().reset(task, ctx)
            return [system(next(starts)), user(task.prompt)]

    group = stage.group()
    player = stage.player(stage.engine(["yes"]), env=Different)

    async def main():
        first = await player.play(group, stage.plan(index=0))
        return first, await player.play(group, stage.plan(index=1))

    first, second = stage.clock.run(main())
    assert first.outcome.status is Status.OK
    assert second.outcome.origin is Origin.ENV
    assert "another prompt" in second.outcome.message


def test_limits_name_the_key_that_is_wrong():
    with pytest.raises(ConfigError, match=r"limits\.max_tokens_per_turn"):
        RolloutLimits(max_tokens_per_turn=0)
