from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.errors import InfraError, SandboxError, ToolError
from treadle.core.messages import Message, ToolCall, user
from treadle.core.outcome import Origin, Outcome, Retry, Status
from treadle.core.seeds import Stream
from treadle.envs.env import Env, EnvContext
from treadle.envs.host import EnvHost, HostConfig, Opened, Score
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.envs.tools import tool
from treadle.testing import check_env

TASK = Task(id="t", prompt="guess", data={"hi": 9})
SHORT = HostConfig(setup_s=0.05, step_s=0.05, score_s=0.05, close_s=0.05, score_retries=1)


class Guess(Env):
    deterministic = True

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.secret = ctx.rng.randint(1, task.data["hi"])
        self.answer: int | None = None
        return [user(task.prompt)]

    @tool(read_only=True, timeout_s=2)
    async def guess(self, x: int) -> str:
        """Compare x with the secret."""
        if x < 0:
            raise ToolError("x must be >= 0")
        return "higher" if x < self.secret else "lower" if x > self.secret else "equal"

    @tool
    def submit(self, x: int) -> str:
        """Submit the final answer."""
        self.answer = x
        return "recorded"

    async def score(self) -> dict[str, float]:
        return {"correct": float(self.answer == self.secret), "bonus": 0.25}


class Free(Env):
    """An environment whose parts are given as functions."""

    def __init__(self, **parts: Callable[..., Any]) -> None:
        self.parts = parts
        self.closed = 0
        self.scored = 0

    async def reset(self, task: Task, ctx: EnvContext) -> Any:
        return await self._part("reset", [user("go")])

    async def step(self, action: Action) -> Any:
        return await self._part("step", Step(messages=(user("seen"),)))

    async def score(self) -> Any:
        self.scored += 1
        return await self._part("score", 1.0)

    async def close(self) -> None:
        self.closed += 1
        await self._part("close", None)

    async def _part(self, name: str, otherwise: Any) -> Any:
        if name not in self.parts:
            return otherwise
        value = self.parts[name]()
        return await value if asyncio.iscoroutine(value) else value


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


async def hang() -> None:
    await asyncio.sleep(3600)


async def swallow() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def call(name: str, id_: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=id_)


def acting(*calls: ToolCall) -> Action:
    return Action(text="", calls=calls)


def host_of(env: Env, config: HostConfig | None = None) -> EnvHost:
    return EnvHost(lambda: env, config=config or HostConfig(), clock=SystemClock())


async def opened(env: Env, config: HostConfig | None = None) -> EnvHost:
    host = host_of(env, config)
    assert (await host.open(TASK, Stream(1))).outcome is None
    return host


def pair(outcome: Outcome | None) -> tuple[Status, Origin]:
    assert outcome is not None
    return outcome.status, outcome.origin


async def test_a_good_episode_is_played_and_scored() -> None:
    env = Guess()
    host = host_of(env)
    start = await host.open(TASK, Stream(1))
    assert start.messages == (user("guess"),)
    assert [spec.name for spec in start.tools] == ["guess", "submit"]
    assert start.max_turns == 8
    seen = await host.act(acting(call("guess", x=0)), step_id="0")
    assert [m.content for m in seen.messages] == ["higher"]
    await host.act(acting(call("submit", x=env.secret)), step_id="1")
    assert (await host.act(Action(text="done"), step_id="2")).terminated
    score = await host.score()
    assert score.parts == {"correct": 1.0, "bonus": 0.25}
    assert score.reward == 1.25
    await host.close()


async def test_the_env_kit_holds_a_good_environment() -> None:
    def gold(task: Task) -> list[Action]:
        secret = Stream(0).at("check_env", task.id).python().randint(1, 9)
        return [acting(call("submit", x=secret)), Action(text="done")]

    await check_env(Guess, [TASK], gold=gold)
    with pytest.raises(AssertionError, match=r"junk .* scored 1\.0"):
        await check_env(Free, [TASK])


async def test_equal_seeds_start_equal_episodes() -> None:
    secrets = []
    for seed in (1, 1, 2, 3, 4):
        env = Guess()
        await host_of(env).open(TASK, Stream(seed))
        secrets.append(env.secret)
    assert secrets[0] == secrets[1]
    assert len(set(secrets)) > 1


@pytest.mark.parametrize(
    ("error", "origin"),
    [(ValueError("bug"), Origin.ENV), (SandboxError("no bwrap"), Origin.INFRA), (InfraError("net"), Origin.INFRA)],
)
async def test_a_failing_reset_is_an_outcome(error: Exception, origin: Origin) -> None:
    env = Free(reset=raising(error))
    start = await host_of(env).open(TASK, Stream(1))
    assert pair(start.outcome) == (Status.ERROR, origin)
    assert start.outcome is not None
    assert start.outcome.message == str(error)
    assert env.closed == 1


@pytest.mark.parametrize("messages", [None, [], "go", [1]])
async def test_a_reset_without_messages_is_the_environments_fault(messages: Any) -> None:
    start = await host_of(Free(reset=lambda: messages)).open(TASK, Stream(1))
    assert pair(start.outcome) == (Status.ERROR, Origin.ENV)


async def test_an_environment_that_cannot_be_made_is_an_outcome() -> None:
    host = EnvHost(raising(OSError("gone")), config=HostConfig(), clock=SystemClock())
    assert pair((await host.open(TASK, Stream(1))).outcome) == (Status.ERROR, Origin.ENV)
    other = EnvHost(lambda: "no env", config=HostConfig(), clock=SystemClock())  # type: ignore[arg-type,return-value]
    assert pair((await other.open(TASK, Stream(1))).outcome) == (Status.ERROR, Origin.ENV)


@pytest.mark.parametrize(
    ("error", "origin", "retry"),
    [
        (KeyError("bug"), Origin.ENV, Retry.RESET),
        (SystemExit(3), Origin.ENV, Retry.RESET),
        (StopIteration(), Origin.ENV, Retry.RESET),
        (asyncio.CancelledError("mine"), Origin.ENV, Retry.RESET),
        (SandboxError("lost"), Origin.INFRA, Retry.INFRA),
    ],
)
async def test_a_failing_step_ends_the_episode_unscored_and_closed(
    error: BaseException, origin: Origin, retry: Retry
) -> None:
    env = Free(step=raising(error))
    host = await opened(env)
    step = await host.act(Action(text="x"), step_id="0")
    assert pair(step.outcome) == (Status.ERROR, origin)
    assert step.outcome is not None
    assert step.outcome.rule.retry is retry
    assert step.messages == ()
    assert (await host.score()) == Score(outcome=step.outcome)
    assert (env.scored, env.closed) == (0, 1)


@pytest.mark.parametrize("value", [None, "text", Step(reward=math.nan), Step(reward=math.inf)])
async def test_a_step_that_is_no_step_is_the_environments_fault(value: Any) -> None:
    host = await opened(Free(step=lambda: value))
    assert pair((await host.act(Action(text="x"), step_id="0")).outcome) == (Status.ERROR, Origin.ENV)


@pytest.mark.parametrize("stage", ["reset", "step"])
@pytest.mark.parametrize("slow", [hang, swallow])
async def test_a_stage_that_hangs_is_the_environments_fault(stage: str, slow: Callable[[], Any]) -> None:
    host = host_of(Free(**{stage: slow}), SHORT)
    start = await host.open(TASK, Stream(1))
    outcome = start.outcome if stage == "reset" else (await host.act(Action(text="x"), step_id="0")).outcome
    assert pair(outcome) == (Status.ERROR, Origin.ENV)
    assert outcome is not None
    assert outcome.type == ("setup_timeout" if stage == "reset" else "step_timeout")


async def test_a_thread_that_hangs_ends_its_own_episode_alone() -> None:
    release = threading.Event()

    class Blocking(Env):
        def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
            return [user("go")]

        def step(self, action: Action) -> Step:
            release.wait()
            return Step()

    stuck, fine = host_of(Blocking(), SHORT), await opened(Free())
    await stuck.open(TASK, Stream(1))
    bad, good = await asyncio.gather(stuck.act(Action(text="x"), step_id="0"), fine.act(Action(text="x"), step_id="0"))
    release.set()
    assert pair(bad.outcome) == (Status.ERROR, Origin.ENV)
    assert good.outcome is None


async def test_plain_methods_all_run_in_one_thread_that_is_not_the_loops() -> None:
    threads = []

    class Plain(Env):
        def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
            threads.append(threading.get_ident())
            return [user("go")]

        @tool
        def look(self) -> str:
            """Look."""
            threads.append(threading.get_ident())
            return "seen"

        def score(self) -> float:
            threads.append(threading.get_ident())
            return 1

    host = await opened(Plain())
    await host.act(acting(call("look")), step_id="0")
    assert (await host.score()).parts == {"score": 1.0}
    await host.close()
    assert len(threads) == 3
    assert set(threads) == {threads[0]} != {threading.get_ident()}


async def test_a_class_without_a_constructor_is_made_without_a_thread() -> None:
    class Careful(Guess):
        def __init__(self) -> None:
            self.made_in = threading.get_ident()

    before = set(threading.enumerate())
    quiet = EnvHost(Guess, config=HostConfig(), clock=SystemClock())
    assert (await quiet.open(TASK, Stream(1))).outcome is None
    assert set(threading.enumerate()) <= before
    made: list[Careful] = []

    def make() -> Careful:
        made.append(Careful())
        return made[-1]

    for factory in (Careful, make):
        host = EnvHost(factory, config=HostConfig(), clock=SystemClock())
        assert (await host.open(TASK, Stream(1))).outcome is None
        assert set(threading.enumerate()) - before
        await host.close()
    assert made[0].made_in != threading.get_ident()


async def test_a_repeated_step_id_gives_the_stored_step() -> None:
    count = []

    def step() -> Step:
        count.append(1)
        return Step(messages=(user(str(len(count))),), terminated=len(count) == 2)

    host = await opened(Free(step=step))
    first, again = await asyncio.gather(
        host.act(Action(text="x"), step_id="0"), host.act(Action(text="x"), step_id="0")
    )
    assert first is again
    last = await host.act(Action(text="y"), step_id="1")
    assert last.terminated
    assert await host.act(Action(text="y"), step_id="1") is last
    with pytest.raises(RuntimeError, match="over"):
        await host.act(Action(text="z"), step_id="2")
    assert len(count) == 2


async def test_the_turn_limit_truncates_and_is_scored() -> None:
    env = Free()
    env.max_turns = 2
    host = await opened(env)
    assert not (await host.act(Action(text="x"), step_id="0")).done
    last = await host.act(Action(text="x"), step_id="1")
    assert last.messages == (user("seen"),)
    assert last.truncated
    assert pair(last.outcome) == (Status.TRUNCATED, Origin.LIMIT)
    assert (await host.score()).parts == {"score": 1.0}


async def test_the_episode_limit_truncates_before_the_next_step() -> None:
    class Late:
        time = 0.0

        def now(self) -> float:
            return self.time

        def wall(self) -> float:
            return self.time

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    clock = Late()
    host = EnvHost(Free, config=HostConfig(episode_s=60), clock=clock)
    await host.open(TASK, Stream(1))
    clock.time = 61.0
    step = await host.act(Action(text="x"), step_id="0")
    assert step.outcome is not None
    assert (step.outcome.origin, step.outcome.type) == (Origin.LIMIT, "time")
    assert (await host.score()).parts == {"score": 1.0}


async def test_a_truncation_by_the_environment_is_a_limit() -> None:
    host = await opened(Free(step=lambda: Step(truncated=True)))
    assert pair((await host.act(Action(text="x"), step_id="0")).outcome) == (Status.TRUNCATED, Origin.LIMIT)


@pytest.mark.parametrize(
    ("part", "tries"),
    [
        (raising(ValueError("bad grader")), 2),
        (raising(SandboxError("lost")), 2),
        (hang, 2),
        (swallow, 1),
        (lambda: math.nan, 1),
        (lambda: {"a": "b"}, 1),
        (lambda: "1.0", 1),
    ],
)
async def test_a_failing_grader_is_an_outcome_after_its_retries(part: Callable[[], Any], tries: int) -> None:
    env = Free(score=part)
    host = await opened(env, SHORT)
    score = await host.score()
    assert pair(score.outcome) == (Status.ERROR, Origin.GRADER)
    assert score.parts is None
    assert score.reward is None
    assert env.scored >= tries
    assert await host.score() is score
    await host.close()


async def test_a_grader_may_succeed_at_the_second_try() -> None:
    answers = [raising(ValueError("flaky")), lambda: 0.5]
    host = await opened(Free(score=lambda: answers.pop(0)()))
    assert (await host.score()).parts == {"score": 0.5}


async def test_no_score_is_not_zero() -> None:
    score = await (await opened(Free(score=lambda: None))).score()
    assert (score.parts, score.outcome, score.reward) == (None, None, None)


async def test_a_tool_that_hangs_and_obeys_is_answered_to_the_model() -> None:
    class Slow(Guess):
        @tool(timeout_s=0.05)
        async def wait(self) -> None:
            """Wait."""
            await hang()

    host = await opened(Slow())
    step = await host.act(acting(call("wait")), step_id="0")
    assert step.outcome is None
    assert step.messages[0].content == "Error: wait took longer than 0.05 s and was stopped"
    assert step.results[0].error
    assert (await host.score()).parts is not None


async def _swallowing(_: Env) -> None:
    await swallow()


def _blocking(env: Env) -> None:
    vars(env)["release"].wait()


@pytest.mark.parametrize("body", [_swallowing, _blocking])
async def test_a_tool_that_cannot_be_cancelled_ends_the_episode_and_is_scored(body: Callable[[Env], Any]) -> None:
    class Stuck(Free):
        step = Env.step  # type: ignore[assignment]

        if asyncio.iscoroutinefunction(body):

            @tool(timeout_s=0.05)
            async def wait(self) -> None:
                """Wait."""
                await body(self)

        else:

            @tool(timeout_s=0.05)
            def wait(self) -> None:
                """Wait."""
                body(self)

        @tool
        async def never(self) -> None:
            """Must not run after a stuck tool."""
            self.ran = True

    env = Stuck()
    vars(env)["release"] = threading.Event()
    host = await opened(env)
    step = await host.act(acting(call("wait", "a"), call("never", "b")), step_id="0")
    assert pair(step.outcome) == (Status.TIMEOUT, Origin.TOOL)
    assert "ran" not in vars(env)
    assert env.closed == 0
    assert (await host.score()).parts == {"score": 1.0}
    assert env.closed == 1
    env.release.set()  # type: ignore[attr-defined]


async def test_cancellation_closes_the_environment_and_passes_through() -> None:
    env = Free(step=hang)
    host = await opened(env)
    running = asyncio.ensure_future(host.act(Action(text="x"), step_id="0"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert env.closed == 1


@pytest.mark.parametrize("part", [raising(ValueError("x")), hang, swallow])
async def test_close_is_bounded_and_idempotent(part: Callable[[], Any]) -> None:
    env = Free(close=part)
    host = await opened(env, SHORT)
    await asyncio.gather(host.close(), host.close())
    await host.close()
    assert env.closed == 1
    assert pair((await host.score()).outcome) == (Status.ERROR, Origin.GRADER)


async def test_a_host_is_opened_once() -> None:
    host = await opened(Free())
    with pytest.raises(RuntimeError, match="once"):
        await host.open(TASK, Stream(1))


async def test_one_failing_episode_leaves_its_siblings_alone() -> None:
    async def play(env: Env) -> tuple[Opened, Score]:
        host = host_of(env, SHORT)
        start = await host.open(TASK, Stream(1))
        if start.outcome is None:
            await host.act(Action(text="x"), step_id="0")
        score = await host.score()
        await host.close()
        return start, score

    envs = [Free(), Free(reset=raising(OSError())), Free(step=raising(SystemExit())), Free(step=swallow), Free()]
    played = await asyncio.gather(*(play(env) for env in envs))
    assert [score.reward for _, score in played] == [1.0, None, None, None, 1.0]


def test_configuration_is_checked() -> None:
    with pytest.raises(ValueError, match=r"host\.step_s: got 0, expected > 0"):
        HostConfig(step_s=0)
    with pytest.raises(ValueError, match="score_retries"):
        HostConfig(score_retries=-1)


def test_the_room_is_light() -> None:
    import subprocess

    code = (
        "import sys, treadle.envs.host, treadle.envs.bubblewrap, treadle.envs.unsafe; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
