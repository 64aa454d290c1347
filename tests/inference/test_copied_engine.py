"""An engine in a process of its own: what it serves, how loads end, and how it dies."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import pytest_asyncio
from copied_lab import Lab

from treadle.core.errors import DeadlineExceeded, EngineError, PromptTooLong, WeightMismatch
from treadle.core.ports import CacheHint, Finish, WeightRef
from treadle.inference import EngineConfig, LoadMode, LocalEngine
from treadle.rendering import PlainParser, Renderer
from treadle.testing import check_engine, check_weights
from treadle.testing.weight_faults import FAULTS, skipped_tensor

pytestmark = pytest.mark.asyncio(loop_scope="module")
HINT = CacheHint(rollout="r", trunk="t", trunk_len=12)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("copies"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(lab):
    """One process for many tests."""
    async with lab.engine() as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def engine(lab, process):
    """It serves a new version."""
    await lab.soon(process.load(lab.update()))
    return process


async def gone(pid):
    """Wait for the end of any process."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool((await asyncio.to_thread(select.select, [handle], [], [], 120))[0])
    finally:
        os.close(handle)


async def running(lab, engine):
    await lab.until(lambda: engine.load_signal().running > 0)


async def test_it_samples_what_an_engine_on_the_shared_tensors_samples(lab, engine):
    requests = [lab.ask(f"r{i}", seed=i) for i in range(5)]
    theirs = await lab.soon(asyncio.gather(*(engine.generate(r) for r in requests)))
    async with LocalEngine(lab.policy, engine.config) as local:
        ours = await lab.soon(asyncio.gather(*(local.generate(r) for r in requests)))
    assert [c.ids.tolist() for c in theirs] == [c.ids.tolist() for c in ours]
    assert max(abs(a.logprobs - b.logprobs).max() for a, b in zip(ours, theirs, strict=True)) < 1e-4
    assert {c.versions for c in theirs} == {((lab.policy.version, 8),)}


async def test_stop_strings_are_read_in_the_engines_process(lab, engine):
    renderer = Renderer.load(lab.model, parser=PlainParser())
    free = await lab.soon(engine.generate(lab.ask(max_tokens=40)))
    stop = renderer.decode(free.ids[20:21])
    done = await lab.soon(engine.generate(lab.ask(max_tokens=40, stop_strings=(stop,))))
    assert done.finish is Finish.STOP
    assert renderer.decode(done.ids) == renderer.decode(free.ids)[: renderer.decode(free.ids).index(stop) + 1]


async def test_a_refusal_comes_back_as_its_own_error(lab, engine):
    with pytest.raises(PromptTooLong, match="1024"):
        await lab.soon(engine.generate(lab.ask(length=1024)))
    with pytest.raises(ValueError, match=r"ids .* expected 0\.\.258"):
        await lab.soon(engine.generate(lab.ask_ids([3, 4, 999])))
    with pytest.raises(ValueError, match="one dimension"):
        await lab.soon(engine.generate(lab.ask_ids([[3, 4]])))


async def test_a_cancelled_request_ends_in_the_engines_process(lab, engine):
    before = engine.statistics().values["cancelled"]
    task = asyncio.ensure_future(engine.generate(lab.ask(max_tokens=1000)))
    await running(lab, engine)
    task.cancel()
    await lab.until(lambda: engine.load_signal().running == 0)
    assert task.cancelled()
    assert engine.statistics().values["cancelled"] == before + 1


async def test_a_released_rollout_leaves_no_kv(lab, engine):
    await lab.soon(engine.generate(lab.ask(cache=HINT)))
    await lab.until(lambda: engine.load_signal().kv_tokens > 0)
    for key in ("r", "t"):
        engine.release(key)
    await lab.until(lambda: engine.load_signal().kv_tokens == 0)
    assert engine.load_signal().slots == 6


async def test_a_rollout_in_flight_goes_on_over_a_load_and_records_both_versions(lab, engine):
    old = lab.policy.version
    task = asyncio.ensure_future(engine.generate(lab.ask(max_tokens=900)))
    await running(lab, engine)
    assert await lab.soon(engine.load(lab.update())) == old + 1
    done = await lab.soon(task)
    assert [version for version, _ in done.versions] == [old, old + 1]
    assert done.kv_version == old


async def test_a_draining_load_lets_what_runs_end_under_the_version_it_began_with(lab, engine):
    old = lab.policy.version
    early = asyncio.ensure_future(engine.generate(lab.ask(max_tokens=300)))
    await running(lab, engine)
    load = asyncio.ensure_future(engine.load(lab.update(), LoadMode.DRAIN))
    for _ in range(3):
        await asyncio.sleep(0)
    late = asyncio.ensure_future(engine.generate(lab.ask("late")))
    done, _, after = await lab.soon(asyncio.gather(early, load, late))
    assert done.versions == ((old, 300),)
    assert (after.versions, after.kv_version) == (((old + 1, 8),), old + 1)


async def test_recompute_leaves_no_kv_of_the_version_before(lab, engine):
    await lab.soon(engine.generate(lab.ask(cache=HINT)))
    await lab.soon(engine.load(lab.update(), LoadMode.RECOMPUTE))
    done = await lab.soon(engine.generate(lab.ask("again", length=12, cache=HINT)))
    assert done.kv_version == lab.policy.version


async def test_a_load_that_fails_fails_what_is_in_flight_and_a_good_one_serves_again(lab, engine):
    kept = lab.publisher.folder / "kept"
    old = lab.publish()
    Path(old.path).rename(kept)
    task = asyncio.ensure_future(engine.generate(lab.ask(max_tokens=900, cache=HINT)))
    await running(lab, engine)
    bad = skipped_tensor(WeightRef(version=old.version, path=str(kept)), lab.update())
    with pytest.raises(WeightMismatch, match=r"tensor \S+ has checksum \w+ in the engine, \w+ was published \(1 of"):
        await lab.soon(engine.load(bad))
    with pytest.raises(EngineError, match="the engine serves nothing: load of policy version"):
        await lab.soon(task)
    with pytest.raises(EngineError, match="the engine serves nothing"):
        await lab.soon(engine.generate(lab.ask()))
    await lab.soon(engine.load(lab.publish()))
    assert engine.load_signal().kv_tokens == 0
    done = await lab.soon(engine.generate(lab.ask(cache=HINT)))
    assert done.kv_version == lab.policy.version
    assert engine.statistics().values["loads_failed"] == 1


async def test_weights_without_a_path_are_refused(lab, engine):
    with pytest.raises(ValueError, match="keeps a copy of its own"):
        await lab.soon(engine.load(WeightRef(version=lab.policy.version)))
    with pytest.raises(EngineError, match="serves nothing"):
        await lab.soon(engine.generate(lab.ask()))


async def test_it_holds_the_contract_of_every_engine(lab):
    small = EngineConfig(slots=6, context=96, max_batch_tokens=64, kv_budget_tokens=4096)
    await check_engine(lambda: lab.loaded(config=small), vocab=259, context=96, reuse=True, timeout_s=120)
    assert lab.policy.version >= 0


async def test_every_fault_of_published_weights_is_caught(lab, tmp_path):
    async with lab.engine() as engine:
        said = await check_weights(engine, lab.policy, tmp_path)
    assert sorted(said) == sorted(FAULTS)
    assert "canary" in said["swapped_before_sums"]
    assert "half written" in said["half_written"]


async def test_a_loader_that_forgets_a_tensor_is_caught(lab):
    lab.update()
    async with lab.engine(command=(sys.executable, "-m", "treadle.testing.skipping_child")) as engine:
        with pytest.raises(WeightMismatch, match=r"tensor model\.norm\.weight has checksum"):
            await lab.soon(engine.load(lab.publish()))
    assert await gone(engine.pid)
    with pytest.raises(EngineError, match="the engine is closed"):
        await lab.soon(engine.generate(lab.ask()))


async def test_a_process_that_is_killed_is_named_to_everyone_who_waits(lab):
    async with lab.loaded() as engine:
        tasks = [asyncio.ensure_future(engine.generate(lab.ask(f"{i}", max_tokens=900))) for i in range(3)]
        await running(lab, engine)
        os.kill(engine.pid, signal.SIGKILL)
        errors = await lab.soon(asyncio.gather(*tasks, return_exceptions=True))
        with pytest.raises(EngineError, match="SIGKILL"):
            await lab.soon(engine.load(lab.publish()))
    assert {type(error) for error in errors} == {EngineError}
    assert all("ended with signal SIGKILL" in str(error) for error in errors)


async def test_a_process_that_hangs_is_ended_and_named(lab):
    async with lab.loaded(silence_s=3.0) as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"engine's process \d+ was ended: it said nothing for 3 s"):
            await lab.soon(engine.generate(lab.ask()))
        assert await gone(engine.pid)


async def test_a_load_that_takes_too_long_is_named_and_leaves_nothing_served(lab):
    async with lab.engine(load_s=0.0) as engine:
        with pytest.raises(DeadlineExceeded, match=r"load of policy version \d+: not finished after 0 s"):
            await lab.soon(engine.load(lab.update()))
        with pytest.raises(EngineError, match="serves nothing"):
            await lab.soon(engine.generate(lab.ask()))


async def test_a_process_that_cannot_start_says_why(lab, tmp_path):
    with pytest.raises(EngineError, match=r"ended with exit status 1: .*ModelError.*nowhere"):
        async with Lab.engine_at(tmp_path / "nowhere"):
            pass
    with pytest.raises(EngineError, match="cannot be started: /nowhere/python"):
        async with lab.engine(command=("/nowhere/python",)):
            pass


async def test_the_process_ends_with_its_owner(lab):
    code = textwrap.dedent(f"""
        import asyncio, os, signal
        from pathlib import Path
        from treadle.inference import CopiedEngine

        async def main():
            async with CopiedEngine(Path({str(lab.model)!r})) as engine:
                print(engine.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """)
    owner = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=240
    )
    assert owner.returncode == -signal.SIGKILL
    assert await gone(int(owner.stdout))
