"""The scripted engine, the echo world and the byte renderer keep the contracts they stand in for."""

import asyncio

import numpy as np
import pytest

import treadle.testing as fakes
from treadle.core.actions import Action
from treadle.core.errors import EngineError
from treadle.core.messages import user
from treadle.core.ports import CacheHint, Finish, Request, Sampling, WeightRef
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.testing.byte_renderer import END, ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.testing.virtual_clock import VirtualClock


def request(rollout="r", most=50):
    return Request(
        prompt=np.array([1, 2], np.int32), sampling=Sampling(max_tokens=most, stop_ids=(END,)), stream=Stream(0),
        cache=CacheHint(rollout=rollout),
    )


def ask(engine, clock, *requests):
    async def main():
        return [await engine.generate(one) for one in requests]

    return clock.run(main())


def test_every_rollout_hears_the_script_from_its_start():
    clock = VirtualClock()
    engine = ScriptedEngine(["one", "two"], clock=clock)
    said = [bytes(c.ids[:-1].tolist()).decode() for c in ask(engine, clock, *map(request, "abaab"))]
    assert said == ["one", "one", "two", "two", "two"]


def test_a_completion_ends_with_the_stop_id_or_at_its_limit():
    clock = VirtualClock()
    whole, cut = ask(ScriptedEngine(["word"], clock=clock), clock, request(), request(most=3))
    assert (whole.finish, int(whole.ids[-1])) == (Finish.STOP, END)
    assert (cut.finish, len(cut.ids)) == (Finish.LENGTH, 3)


def test_a_script_may_fail():
    clock = VirtualClock()
    with pytest.raises(EngineError, match="lost"):
        ask(ScriptedEngine([EngineError("lost")], clock=clock), clock, request())


def test_a_load_in_the_middle_splits_the_versions_and_keeps_the_old_kv():
    clock = VirtualClock()
    engine = ScriptedEngine(["abcd"], clock=clock, latency=lambda turn: 10.0)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(engine.generate(request()))
            await clock.sleep(5)
            await engine.load(WeightRef(version=3))
        return first.result(), await engine.generate(request()), await engine.generate(request("other"))

    first, second, other = clock.run(main())
    assert (first.versions, first.kv_version) == (((0, 2), (3, 3)), 0)
    assert (second.versions, second.oldest_version) == (((3, 5),), 0)
    assert other.oldest_version == 3


def test_a_cancelled_request_leaves_no_slot_behind():
    clock = VirtualClock()
    engine = ScriptedEngine(["a"], clock=clock, latency=lambda turn: 10.0)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(engine.generate(request()))
            await clock.sleep(1)
            task.cancel()

    clock.run(main())
    assert (engine.running, engine.cancelled) == (0, 1)


def test_the_echo_world_says_back_and_pays():
    clock = VirtualClock()

    async def main():
        host = EnvHost(EchoEnv, config=HostConfig(), clock=clock)
        opened = await host.open(EchoTaskset(("yes",), data={"turns": 2}).task("train", 0), Stream(0))
        first = await host.act(Action(text="no"), step_id="0")
        second = await host.act(Action(text=" yes "), step_id="1")
        score = await host.score()
        await host.close()
        return opened, first, second, score

    opened, first, second, score = clock.run(main())
    assert [m.content for m in (*opened.messages, *first.messages)] == ["say yes", "you said no"]
    assert (first.terminated, second.terminated) == (False, True)
    assert score.parts == {"correct": 1.0}


def test_the_byte_renderer_bridges_without_a_second_end():
    renderer = ByteRenderer()
    said = renderer.demonstration("hi")
    path = np.concatenate([renderer.first([user("a")]), said, renderer.bridge([user("b")], ended=True)])
    cut = np.concatenate([renderer.first([user("a")]), said[:-1], renderer.bridge([user("b")], ended=False)])
    assert np.array_equal(path, cut)


def test_public_names_load_when_asked_for():
    assert fakes.VirtualClock is VirtualClock
    kits = {"check_credit", "check_engine", "check_env", "check_sandbox"}
    assert set(fakes.__all__) >= {"EchoEnv", "ScriptedEngine", "VirtualClock"} | kits
    assert all(callable(getattr(fakes, name)) for name in fakes.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fakes.Nothing
