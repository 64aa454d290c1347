"""Whatever an environment raises or gives ends its own rollout, with the outcome of the table."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.errors import SandboxError
from treadle.core.messages import Message, user
from treadle.core.outcome import Origin, limit
from treadle.core.seeds import Stream
from treadle.envs.calling import end_strays
from treadle.envs.env import Env
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.step import Step
from treadle.envs.task import Task

TASK = Task(id="t", prompt="go")
SHORT = HostConfig(setup_s=0.05, step_s=0.05, score_s=0.05, close_s=0.05)


class Panic(BaseException):
    """What native code raises when it panics: no Exception."""


class Given(Env):
    """Gives what a test says; an exception is raised."""

    def __init__(self, *, prompt: Any = None, step: Any = None, score: Any = 1.0) -> None:
        self.prompt, self.answer, self.mark = prompt or [user("go")], step, score

    async def reset(self, task: Any, ctx: Any) -> Any:
        return self.prompt

    async def step(self, action: Action) -> Any:
        return self._out(self.answer)

    async def score(self) -> Any:
        return self._out(self.mark)

    def _out(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value


class InThread(Given):
    """The same in plain functions."""

    def step(self, action: Action) -> Any:
        return self._out(self.answer)


def host_of(env: Env, config: HostConfig | None = None) -> EnvHost:
    return EnvHost(lambda: env, config=config or HostConfig(), clock=SystemClock())


async def stepped(env: Env) -> Step:
    host = host_of(env)
    await host.open(TASK, Stream(1))
    step = await host.act(Action(text="x"), step_id="0")
    await host.close()
    return step


@pytest.mark.parametrize("kind", [Given, InThread])
@pytest.mark.parametrize(
    "error", [Panic("rust"), GeneratorExit(), SystemExit(3), asyncio.CancelledError(), StopAsyncIteration()]
)
async def test_what_is_no_exception_is_still_the_environments_fault(kind: type[Given], error: BaseException) -> None:
    step = await stepped(kind(step=error))
    assert step.outcome is not None
    assert step.outcome.origin is Origin.ENV
    assert type(error).__name__ in f"{step.outcome.type}: {step.outcome.message}"


@pytest.mark.parametrize(
    ("inner", "origin"), [(ValueError("inner"), Origin.ENV), (SandboxError("inner"), Origin.INFRA)]
)
async def test_a_group_of_errors_is_its_first_one(inner: Exception, origin: Origin) -> None:
    step = await stepped(Given(step=ExceptionGroup("tasks", [ExceptionGroup("more", [inner])])))
    assert step.outcome is not None
    assert (step.outcome.origin, step.outcome.type) == (origin, type(inner).__name__)
    assert step.outcome.message == "inner"


async def test_an_error_that_cannot_be_told_is_still_an_outcome() -> None:
    class Ugly(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    step = await stepped(Given(step=Ugly()))
    assert step.outcome is not None
    assert (step.outcome.type, step.outcome.message) == ("Ugly", "")


@pytest.mark.parametrize(
    "prompt",
    [
        "go", ["go"], [{"role": "user"}], user("go"), (m for m in ()), [Message(role="robot")],  # type: ignore[arg-type]
        [Message(role="user", content=b"go")], [Message(role="user", tool_calls=("x",))],  # type: ignore[arg-type]
    ],
)
async def test_a_prompt_is_messages(prompt: Any) -> None:
    opened = await host_of(Given(prompt=prompt)).open(TASK, Stream(1))
    assert opened.outcome is not None
    assert opened.outcome.origin is Origin.ENV
    assert "Given.reset: got" in opened.outcome.message


@pytest.mark.parametrize(("name", "value"), [("max_turns", None), ("max_turns", 0), ("tool_specs", lambda: ("x",))])
async def test_turns_and_tools_are_checked_when_the_episode_opens(name: str, value: Any) -> None:
    env = Given()
    setattr(env, name, value)
    opened = await host_of(env).open(TASK, Stream(1))
    assert opened.outcome is not None
    assert f"Given.{name}: got" in opened.outcome.message


@pytest.mark.parametrize(
    "step",
    [
        None, ("text", 1.0, True, {}), Step(reward=float("inf")), Step(reward=None),  # type: ignore[arg-type]
        Step(reward="1"), Step(reward=10**400), Step(reward=1e300), Step(messages="hi"),  # type: ignore[arg-type]
        Step(messages=({},)), Step(messages=None), Step(outcome="over"),  # type: ignore[arg-type]
        Step(state_key=object()), Step(results="x"), Step(terminated="yes"),  # type: ignore[arg-type]
        Step(reward=np.ones(2)),  # type: ignore[arg-type]
    ],
)
async def test_a_step_is_a_step_through_and_through(step: Any) -> None:
    got = await stepped(Given(step=step))
    assert got.outcome is not None
    assert got.outcome.origin is Origin.ENV
    assert "Given.step: got" in got.outcome.message


async def test_numbers_of_other_kinds_become_plain_ones() -> None:
    over: Any = np.bool_(True)
    step = await stepped(Given(step=Step(reward=np.float32(0.5), terminated=over, messages=[user("x")])))  # type: ignore[arg-type]
    assert (type(step.reward), step.reward) == (float, 0.5)
    assert step.terminated is True
    assert step.messages == (user("x"),)


@pytest.mark.parametrize(
    "score", ["1.0", [1], {"a": None}, 1j, 10**400, 1e39, float("nan"), Decimal("sNaN"), np.ones(2), Panic("rust")]
)
async def test_a_score_that_is_no_number_is_the_graders_failure(score: Any) -> None:
    host = host_of(Given(step=Step(outcome=limit("x")), score=score))
    await host.open(TASK, Stream(1))
    found = await host.score()
    await host.close()
    assert found.parts is None
    assert found.outcome is not None
    assert found.outcome.origin is Origin.GRADER


async def test_a_cancelled_close_is_done_to_its_end_and_the_thread_goes() -> None:
    began, release = asyncio.Event(), asyncio.Event()

    class Slow(InThread):
        freed = False

        async def close(self) -> None:
            began.set()
            await release.wait()
            self.freed = True

    env, before = Slow(step=Step(terminated=True)), set(threading.enumerate())
    host = host_of(env)
    await host.open(TASK, Stream(1))
    await host.act(Action(text="x"), step_id="0")
    (thread,) = set(threading.enumerate()) - before
    closing = asyncio.ensure_future(host.close())
    await began.wait()
    closing.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    thread.join(5)
    assert (env.freed, thread.is_alive()) == (True, False)


async def stubborn(refused: list[type[BaseException]]) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            refused.append(type(error))
            if len(refused) > 2:  # it is freed: now it obeys
                raise


def test_a_coroutine_that_refuses_everything_does_not_hold_the_loops_end() -> None:
    refused: list[type[BaseException]] = []

    class Stubborn(Given):
        async def step(self, action: Action) -> Any:
            await stubborn(refused)

    async def play() -> Any:
        host = host_of(Stubborn(), SHORT)
        await host.open(TASK, Stream(1))
        return (await host.act(Action(text="x"), step_id="0")).outcome

    outcome = asyncio.run(play())
    assert outcome.type == "step_timeout"
    assert refused[:2] == [asyncio.CancelledError, GeneratorExit]


def test_tasks_that_user_code_left_are_ended_or_let_go() -> None:
    refused: list[type[BaseException]] = []

    async def leave() -> None:
        left = [asyncio.ensure_future(asyncio.Event().wait()), asyncio.ensure_future(stubborn(refused))]
        await asyncio.sleep(0)
        await end_strays()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert left[0].cancelled()

    asyncio.run(leave())
    assert refused[:2] == [asyncio.CancelledError, GeneratorExit]
