"""Faults of worlds and engines, each injected into a real run of the pipeline.

    reset_fails      30 % of the resets raise; half of them say that the machinery failed
    step_hangs       5 % of the steps never end; half of them swallow their cancellation
    step_raises      10 % of the steps raise, `SystemExit` among what they raise
    grader_crashes   10 % of the gradings raise; half of them are well at the second try
    engine_raises    the engine fails in mid-batch, and a dozen requests with it
    sandbox_killed   a sandbox is killed from outside, between two commands or under one
    output_flood     a command prints without end; half of the time all that was kept of it goes into the context
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace

from bench.fault_judge import Verdict, judge
from bench.fault_lab import WHO, Injector, Lab, Setting
from treadle.core.actions import Action
from treadle.core.errors import EngineError, InfraError
from treadle.core.messages import Message, user
from treadle.core.ports import Completion, Request
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.env import EnvContext
from treadle.envs.host import HostConfig
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.pipeline.config import PipelineConfig
from treadle.testing.echo_env import EchoEnv
from treadle.testing.scripted_engine import ScriptedEngine, Turn

CONFIG = PipelineConfig(group_size=4, groups_per_update=6, updates=8, lag=1)
SANDBOXED = PipelineConfig(group_size=4, groups_per_update=2, updates=5)
STEP_S = 0.5
"""Time limit of a step where steps hang."""
REQUESTS_TO_A_BREAK, IN_A_BATCH = 90, 12
"""How often the engine breaks, and how many requests are in the batch that breaks with it."""
GONE_S = 10.0
"""How long a killed sandbox may take to be gone."""


def mixed(turn: Turn) -> str:
    """Of any three rollouts of a group of four one says the word and one does not: there is something to compare."""
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def takes(turn: Turn) -> float:
    """Seconds of a completion, with a tail."""
    return min(0.002 * turn.request.stream.at("latency").python().lognormvariate(0.0, 1.0), 0.05)


async def for_ever(*, stubborn: bool) -> None:
    """A wait without an end; a stubborn one does not hear the first cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not stubborn:
            raise
    await asyncio.Event().wait()


class FaultyEnv(EchoEnv):
    """Two turns; knows who injects and which rollout it is in."""

    def __init__(self, injector: Injector) -> None:
        self.injector = injector
        self.rollout = ""
        self.turn = 0

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.rollout = WHO.get()
        return await super().reset(task, ctx)

    async def step(self, action: Action) -> Step:
        self.turn += 1
        return await super().step(action)

    def note(self, what: str, status: str = "error", origin: str = "env") -> None:
        """Write down what is done to this rollout now."""
        self.injector.note(what, rollout=self.rollout, status=status, origin=origin)


class ResetFails(FaultyEnv):
    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        messages = await super().reset(task, ctx)
        draw = self.injector.draw(self.rollout)
        if draw < 0.15:
            self.note("reset raises")
            raise RuntimeError("the world could not be set up")
        if draw < 0.3:
            self.note("reset finds no machinery", origin="infra")
            raise InfraError("no machine for this world")
        return messages


class StepHangs(FaultyEnv):
    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        draw = self.injector.draw(self.rollout, self.turn)
        if draw < 0.05:
            self.note("step hangs" if draw < 0.025 else "step hangs and will not be cancelled")
            await for_ever(stubborn=draw >= 0.025)
        return step


class StepRaises(FaultyEnv):
    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        draw = self.injector.draw(self.rollout, self.turn)
        if draw < 0.1:
            errors = (ValueError("as told"), KeyError(), ZeroDivisionError(), SystemExit(3))
            error = errors[int(draw * 40)]
            self.note(f"step raises {type(error).__name__}")
            raise error
        return step


class GraderCrashes(FaultyEnv):
    graded = 0

    async def score(self) -> Mapping[str, float]:
        self.graded += 1
        draw = self.injector.draw(self.rollout)
        if self.graded == 1 and draw < 0.05:
            self.note("grading raises", origin="grader")
        elif self.graded == 1 and draw < 0.1:
            self.note("grading raises once", status="ok", origin="-")
        if draw < 0.05 or (draw < 0.1 and self.graded == 1):
            raise RuntimeError("the grader crashed")
        return await super().score()


class SandboxedEnv(FaultyEnv):
    """Runs a command in a sandbox of its own at every step."""

    sandbox: BubblewrapSandbox | None = None

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        messages = await super().reset(task, ctx)
        self.sandbox = BubblewrapSandbox()
        await self.sandbox.start()
        return messages

    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        assert self.sandbox is not None, "a step follows a reset"
        kept = await self.disturb(self.sandbox, self.injector.draw(self.rollout)) if self.turn == 1 else ""
        result = await self.sandbox.run("echo here")
        assert result.output == "here\n", f"the sandbox answers {result}"
        return replace(step, messages=(user(kept),)) if kept else step

    async def disturb(self, sandbox: BubblewrapSandbox, draw: float) -> str:
        """Do it, or not; what the model is to read instead of the echo."""
        raise NotImplementedError

    async def close(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.close()


class SandboxKilled(SandboxedEnv):
    async def disturb(self, sandbox: BubblewrapSandbox, draw: float) -> str:
        box = sandbox._box
        assert box is not None, "the sandbox was started"
        if draw < 0.25:
            self.note("sandbox killed between two commands", origin="infra")
            os.kill(box.first, signal.SIGKILL)
            async with asyncio.timeout(GONE_S):
                while not box.channel.gone:
                    await asyncio.sleep(0.002)
        elif draw < 0.5:
            self.note("sandbox killed under a command", status="ok", origin="-")
            asyncio.get_running_loop().call_later(0.05, os.kill, box.first, signal.SIGKILL)
            result = await sandbox.run("sleep 9", timeout_s=20)
            assert result.restarted, f"the killed command ended as {result}"
        return ""


class OutputFlood(SandboxedEnv):
    floods = ("yes", "head -c 100000000 /dev/zero | tr '\\0' x", "while :; do echo $RANDOM $RANDOM $RANDOM; done")

    async def disturb(self, sandbox: BubblewrapSandbox, draw: float) -> str:
        if draw >= 0.5:
            return ""
        raw = draw < 0.25
        command = self.floods[int(draw * 100) % len(self.floods)]
        self.note(
            f"prints without end: {command}{', all of it into the context' if raw else ''}",
            *(("truncated", "limit") if raw else ("ok", "-")),
        )
        result = await sandbox.run(command, timeout_s=20)
        assert result.killed == "output", f"the flood ended as {result.killed!r} with status {result.status}"
        most = sandbox.limits.output_bytes
        assert len(result.output) <= most, f"{len(result.output)} characters were kept, at most {most} may be"
        return result.output if raw else ""


class BreakingEngine(ScriptedEngine):
    """Breaks down again and again, and the requests that are longest in flight then fail: its batch."""

    def __init__(self, injector: Injector) -> None:
        super().__init__(mixed, latency=takes)
        self.injector = injector
        self.flying: dict[str, None] = {}
        """Rollouts with a request, oldest first."""
        self.broken: set[str] = set()
        self.asked = 0

    async def generate(self, request: Request) -> Completion:
        assert request.cache is not None, "a player always says whose request it is"
        rollout = request.cache.rollout
        self.flying[rollout] = None
        self.asked += 1
        if self.asked % REQUESTS_TO_A_BREAK == 0:
            self.break_down()
        try:
            completion = await super().generate(request)
        finally:
            del self.flying[rollout]
        if rollout in self.broken:
            self.broken.discard(rollout)
            raise EngineError("the engine broke down in mid-batch")
        return completion

    def break_down(self) -> None:
        for rollout in [name for name in self.flying if name not in self.broken][:IN_A_BATCH]:
            self.injector.note("engine breaks in mid-batch", rollout=rollout, status="error", origin="infra")
            self.broken.add(rollout)


async def in_world(
    setting: Setting, env: Callable[[Injector], FaultyEnv], *, config: PipelineConfig = CONFIG, step_s: float = 30.0
) -> Verdict:
    """A run in such a world, judged."""
    lab = Lab(
        folder=setting.folder, config=replace(config, updates=setting.updates(config.updates)),
        make_env=lambda: env(setting.injector), engine=ScriptedEngine(mixed, latency=takes),
        host=HostConfig(step_s=step_s),
    )
    await lab.run()
    return judge(lab, setting.injector.faults)


async def sandboxed(setting: Setting, env: Callable[[Injector], SandboxedEnv]) -> Verdict:
    """The same with real sandboxes. Raises RuntimeError with the remedy where there are none."""
    if (reason := BubblewrapSandbox.available()) is not None:
        raise RuntimeError(reason)
    return await in_world(setting, env, config=SANDBOXED)


async def in_flight(setting: Setting) -> Verdict:
    """A run whose engine fails in mid-batch."""
    lab = Lab(
        folder=setting.folder, config=replace(CONFIG, updates=setting.updates(CONFIG.updates)),
        make_env=lambda: FaultyEnv(setting.injector), engine=BreakingEngine(setting.injector),
    )
    await lab.run()
    return judge(lab, setting.injector.faults)


def reset_fails(setting: Setting) -> Verdict:
    return asyncio.run(in_world(setting, ResetFails))


def step_hangs(setting: Setting) -> Verdict:
    return asyncio.run(in_world(setting, StepHangs, step_s=STEP_S))


def step_raises(setting: Setting) -> Verdict:
    return asyncio.run(in_world(setting, StepRaises))


def grader_crashes(setting: Setting) -> Verdict:
    return asyncio.run(in_world(setting, GraderCrashes))


def sandbox_killed(setting: Setting) -> Verdict:
    return asyncio.run(sandboxed(setting, SandboxKilled))


def output_flood(setting: Setting) -> Verdict:
    return asyncio.run(sandboxed(setting, OutputFlood))


def engine_breaks(setting: Setting) -> Verdict:
    return asyncio.run(in_flight(setting))
