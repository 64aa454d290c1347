"""An engine's process that ends before its time is started again: how often, with which weights, and what fails."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from copied_lab import Lab

from treadle.core.errors import EngineError, WeightMismatch


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("restarts"))


async def kill(lab, engine):
    """End the process from outside, and wait until its owner has noticed."""
    os.kill(engine.pid, signal.SIGKILL)
    await lab.until(lambda: bool(engine._process.dead))


async def serves(lab, engine):
    done = await lab.soon(engine.generate(lab.ask()))
    return done.versions == ((lab.policy.version, 8),)


def counts(engine):
    return [int(engine.statistics().values[name]) for name in ("restarts", "loads", "loads_failed")]


async def test_what_is_in_flight_fails_and_what_comes_next_is_served_by_the_same_weights(lab):
    heard = []
    async with lab.loaded(restarts=1) as engine:
        engine.restarted = lambda why, seconds: heard.append((why, seconds))
        meant = await lab.soon(engine.generate(lab.ask()))
        first = engine.pid
        running = [asyncio.ensure_future(engine.generate(lab.ask(f"{i}", max_tokens=900))) for i in range(3)]
        await lab.until(lambda: engine.load_signal().running > 0)
        await kill(lab, engine)
        errors = await lab.soon(asyncio.gather(*running, return_exceptions=True))
        assert {type(error) for error in errors} == {EngineError}
        assert all("ended with signal SIGKILL" in str(error) for error in errors)

        impatient = asyncio.ensure_future(engine.generate(lab.ask()))  # it begins the restart, and gives up
        for _ in range(3):
            await asyncio.sleep(0)
        impatient.cancel()
        again = await lab.soon(asyncio.gather(*(engine.generate(lab.ask()) for _ in range(5))))
        assert impatient.cancelled()
        assert engine.pid != first
        assert [done.ids.tolist() for done in again] == [meant.ids.tolist()] * 5
        assert {done.versions for done in again} == {((lab.policy.version, 8),)}
        assert counts(engine) == [1, 2, 0]
    ((why, seconds),) = heard
    assert f"the engine's process {first} ended with signal SIGKILL" in why
    assert 0 <= seconds < 60


async def test_one_that_hangs_is_started_again_so_often_and_no_more(lab):
    async with lab.loaded(restarts=1, silence_s=3.0) as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="it said nothing for 3 s"):
            await lab.soon(engine.generate(lab.ask()))
        assert await serves(lab, engine)
        await kill(lab, engine)
        for _ in range(2):
            with pytest.raises(EngineError, match="ended with signal SIGKILL"):
                await lab.soon(engine.generate(lab.ask()))
        with pytest.raises(EngineError, match="ended with signal SIGKILL"):
            await lab.soon(engine.load(lab.update()))
        assert counts(engine)[0] == 1
    with pytest.raises(EngineError, match="ended with signal SIGKILL"):
        await lab.soon(engine.generate(lab.ask()))


async def test_a_load_has_it_started_again_before_and_in_its_middle(lab):
    async with lab.engine(restarts=2) as engine:
        await kill(lab, engine)
        with pytest.raises(EngineError, match="ended with signal SIGKILL"):  # no weights to serve with
            await lab.soon(engine.generate(lab.ask()))
        assert await lab.soon(engine.load(lab.publish())) == lab.policy.version
        assert await serves(lab, engine)
        loading = asyncio.ensure_future(engine.load(lab.update()))
        for _ in range(3):
            await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        assert await lab.soon(loading) == lab.policy.version
        assert await serves(lab, engine)
        assert counts(engine)[0] == 2


async def test_weights_that_are_gone_are_not_made_up_and_the_next_good_load_serves(lab):
    async with lab.loaded(restarts=1) as engine:
        kept = Path(lab.publish().path)
        kept.rename(lab.publisher.folder / "gone")
        await kill(lab, engine)
        with pytest.raises(WeightMismatch, match="cannot be read"):
            await lab.soon(engine.generate(lab.ask()))
        with pytest.raises(EngineError, match="the engine serves nothing"):
            await lab.soon(engine.generate(lab.ask()))
        assert await lab.soon(engine.load(lab.update())) == lab.policy.version
        assert await serves(lab, engine)
    assert counts(engine)[0] == 1
