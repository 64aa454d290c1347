"""The virtual clock: jumps over waits, stands still for threads, refuses to hang."""

import asyncio
import time

import pytest

from treadle.core.actions import Action
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.step import Step
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.testing.virtual_clock import VirtualClock


def test_an_hour_of_sleep_takes_no_real_time():
    clock = VirtualClock()
    began = time.monotonic()

    async def main():
        await clock.sleep(3600)
        return clock.now()

    assert clock.run(main()) == pytest.approx(3600)
    assert time.monotonic() - began < 2


def test_timers_fire_in_order_of_virtual_time():
    clock = VirtualClock()
    seen = []

    async def wait(seconds):
        await clock.sleep(seconds)
        seen.append((seconds, round(clock.now(), 6)))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            for seconds in (3.0, 1.0, 2.0):
                tasks.create_task(wait(seconds))

    clock.run(main())
    assert seen == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_timeouts_count_virtual_seconds():
    clock = VirtualClock()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await asyncio.Event().wait()
        return clock.now()

    assert clock.run(main()) == pytest.approx(50)


def test_time_stands_still_while_a_thread_works():
    clock = VirtualClock()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clock.sleep(100))
            work = tasks.create_task(asyncio.to_thread(lambda: sum(range(200_000))))
            await work
            return clock.now()

    assert clock.run(main()) == 0.0


def test_a_program_that_waits_for_ever_raises():
    clock = VirtualClock()

    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits for ever"):
        clock.run(main())


def test_time_stands_still_while_a_plain_method_of_an_environment_works():
    clock = VirtualClock()

    class Plain(EchoEnv):
        def step(self, action):
            return Step(terminated=sum(range(300_000)) > 0)

    async def main():
        host = EnvHost(Plain, config=HostConfig(step_s=1), clock=clock)
        await host.open(EchoTaskset().task("train", 0), Stream(0))
        step = await host.act(Action(text="yes"), step_id="0")
        await host.close()
        return step, clock.now()

    step, now = clock.run(main())
    assert step.terminated
    assert now == 0.0
