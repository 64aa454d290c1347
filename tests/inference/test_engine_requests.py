"""How requests end, wait, fail and go away."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from treadle.core.errors import ConfigError, EngineError, PromptTooLong
from treadle.core.ports import CacheHint, Finish
from treadle.inference import EngineConfig, LocalEngine

Lab = Any


def as_text(ids: Any) -> str:
    """One letter per id: a tokenizer for stop strings."""
    return "".join(chr(0x100 + int(i)) for i in ids)


async def test_a_stop_id_is_the_last_token(lab: Lab) -> None:
    async with lab.engine() as engine:
        (free,) = await lab.all(engine, lab.ask(lab.ids(9), max_tokens=20))
        stop = int(free.ids[7])
        (done,) = await lab.all(engine, lab.ask(lab.ids(9), max_tokens=20, stop_ids=(stop,)))
    assert done.finish is Finish.STOP
    assert done.ids.tolist() == free.ids[: free.ids.tolist().index(stop) + 1].tolist()


async def test_a_stop_string_over_several_tokens_ends_with_the_token_that_completes_it(lab: Lab) -> None:
    async with lab.engine(decode=as_text) as engine:
        (free,) = await lab.all(engine, lab.ask(lab.ids(9), max_tokens=30))
        stop = as_text(free.ids[10:13])
        (done,) = await lab.all(engine, lab.ask(lab.ids(9), max_tokens=30, stop_strings=("never", stop)))
    assert (done.finish, done.ids.tolist()) == (Finish.STOP, free.ids[:13].tolist())


async def test_a_stop_string_in_the_prompt_does_not_count(lab: Lab) -> None:
    prompt = lab.ids(9)
    async with lab.engine(decode=as_text) as engine:
        (done,) = await lab.all(engine, lab.ask(prompt, stop_strings=(as_text(prompt[-3:]),)))
    assert done.finish is Finish.LENGTH


async def test_stop_strings_need_a_decode_function(lab: Lab) -> None:
    async with lab.engine() as engine:
        with pytest.raises(ValueError, match="decode"):
            await engine.generate(lab.ask(lab.ids(9), stop_strings=("x",)))


async def test_a_decode_function_that_raises_fails_its_own_request_only(lab: Lab) -> None:
    def decode(ids: Any) -> str:
        raise KeyError("broken tokenizer")

    async with lab.engine(decode=decode) as engine:
        bad, good = await lab.soon(
            asyncio.gather(
                engine.generate(lab.ask(lab.ids(9), stop_strings=("x",))),
                engine.generate(lab.ask(lab.ids(9), "b")),
                return_exceptions=True,
            )
        )
    assert isinstance(bad, EngineError)
    assert good.finish is Finish.LENGTH


async def test_a_full_context_ends_as_context(lab: Lab) -> None:
    async with lab.engine(context=64) as engine:
        full, exact = await lab.all(
            engine, lab.ask(lab.ids(60), max_tokens=30), lab.ask(lab.ids(60), "b", max_tokens=4)
        )
    assert (len(full.ids), full.finish) == (4, Finish.CONTEXT)
    assert (len(exact.ids), exact.finish) == (4, Finish.LENGTH)


async def test_a_prompt_as_long_as_the_context_is_refused(lab: Lab) -> None:
    async with lab.engine(context=64) as engine:
        with pytest.raises(PromptTooLong, match="64"):
            await engine.generate(lab.ask(lab.ids(64)))


@pytest.mark.parametrize("prompt", [[], [5, 100_000], [-1]])
async def test_a_prompt_that_is_no_prompt_is_refused(lab: Lab, prompt: list[int]) -> None:
    async with lab.engine() as engine:
        with pytest.raises(ValueError, match="prompt"):
            await engine.generate(lab.ask(np.asarray(prompt, dtype=np.int32)))


async def test_five_hundred_requests_on_few_slots_are_all_answered(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(3 + i % 20, i), f"r{i}", max_tokens=1 + i % 9) for i in range(500)]
    async with lab.engine(slots=5) as engine:
        done = await lab.all(engine, *requests)
        signal = engine.load_signal()
    assert [len(d.ids) for d in done] == [r.sampling.max_tokens for r in requests]
    assert (signal.running, signal.waiting, signal.kv_tokens) == (0, 0, 0)


async def test_priorities_order_the_queue_and_ties_go_by_arrival(lab: Lab) -> None:
    finished: list[str] = []

    async def run(engine: LocalEngine, name: str, priority: int) -> None:
        await engine.generate(lab.ask(lab.ids(6), name, max_tokens=3, priority=priority))
        finished.append(name)

    async with lab.engine(slots=1) as engine:
        with lab.policy.gate.write("test"):  # the engine cannot step, so all of them wait
            tasks = [
                asyncio.ensure_future(run(engine, n, p)) for n, p in (("a", 5), ("b", 1), ("c", 5), ("d", 0), ("e", 1))
            ]
            await lab.turn()
        await lab.soon(asyncio.gather(*tasks))
    assert finished == ["d", "b", "e", "a", "c"]


async def test_cancellation_frees_slot_and_kv(lab: Lab) -> None:
    async with lab.engine(slots=1) as engine:
        pause = lab.pause_after(3)
        task = asyncio.ensure_future(engine.generate(lab.ask(lab.ids(20), max_tokens=200)))
        await lab.soon(pause.reached.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pause.go()
        (after,) = await lab.all(engine, lab.ask(lab.ids(5), "b"))
        assert len(after.ids) == 8
        assert lab.counts(engine, "cancelled", "running", "kv_tokens") == (1, 0, 0)
        assert engine._worker.arena.free_tokens == engine.config.kv_budget_tokens


async def test_a_waiting_request_can_be_cancelled(lab: Lab) -> None:
    async with lab.engine(slots=1) as engine:
        with lab.policy.gate.write("test"):
            tasks = [asyncio.ensure_future(engine.generate(lab.ask(lab.ids(6), n))) for n in "abc"]
            await lab.turn()
            tasks[1].cancel()
            await lab.turn()
        done = await lab.soon(asyncio.gather(*tasks, return_exceptions=True))
        assert [isinstance(d, asyncio.CancelledError) for d in done] == [False, True, False]
        assert engine.load_signal().waiting == 0


async def test_kv_of_earlier_turns_survives_a_cancelled_turn(lab: Lab) -> None:
    hint = CacheHint(rollout="r", trunk="t", trunk_len=20)
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, lab.ask(lab.ids(20), cache=hint))
        longer = np.concatenate([lab.ids(20), first.ids, lab.ids(6, 1)])
        second = lab.ask(longer, "second", max_tokens=100, cache=hint)
        pause = lab.pause_after(3)
        task = asyncio.ensure_future(engine.generate(second))
        await lab.soon(pause.reached.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pause.go()
        await lab.all(engine, lab.ask(lab.ids(3), "b"))
        before = lab.counts(engine, "reused_tokens")[0]
        (done,) = await lab.all(engine, second)
        assert lab.counts(engine, "reused_tokens")[0] - before == 20 + 7
    assert lab.error(second, done) < 1e-4


async def test_a_failing_forward_fails_its_requests_and_the_engine_goes_on(lab: Lab) -> None:
    plain = lab.policy.hidden

    def fail(*args: Any) -> Any:
        lab.policy.hidden = plain
        raise MemoryError("no memory for the step")

    async with lab.engine() as engine:
        lab.policy.hidden = fail
        hint = CacheHint(rollout="r", trunk="t", trunk_len=20)
        with pytest.raises(EngineError, match="no memory for the step"):
            await lab.soon(engine.generate(lab.ask(lab.ids(20), cache=hint)))
        request = lab.ask(lab.ids(20), cache=hint)
        (done,) = await lab.all(engine, request)
        assert lab.counts(engine, "failed") == (1,)
    assert lab.error(request, done) < 1e-4


async def test_logits_that_are_not_finite_fail_the_request_and_leave_no_trace(lab: Lab) -> None:
    weight = lab.policy.module.get_input_embeddings().weight
    poisoned = weight.detach().clone()
    poisoned[7] = float("nan")
    clean, weight.data = weight.data, poisoned
    async with lab.engine() as engine:
        with pytest.raises(EngineError, match="finite"):
            await lab.soon(engine.generate(lab.ask(np.full(150, 7, np.int32))))
        weight.data = clean
        requests = [lab.ask(lab.ids(20, i), f"r{i}", max_tokens=20 + i) for i in range(8)]
        done = await lab.all(engine, *requests)
    assert max(lab.error(r, d) for r, d in zip(requests, done, strict=True)) < 1e-4


async def test_an_engine_that_is_not_open_refuses(lab: Lab) -> None:
    engine = lab.engine()
    with pytest.raises(EngineError, match="async with"):
        await engine.generate(lab.ask(lab.ids(5)))


async def test_closing_fails_what_is_in_flight(lab: Lab) -> None:
    async with lab.engine(slots=1) as engine:
        pause = lab.pause_after(2)
        tasks = [asyncio.ensure_future(engine.generate(lab.ask(lab.ids(5), n, max_tokens=240))) for n in "ab"]
        await lab.soon(pause.reached.wait())
        asyncio.get_running_loop().call_later(0.05, pause.go)  # by then the engine is closing
    done = await lab.soon(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(d) for d in done] == [EngineError, EngineError]


async def test_a_stalled_engine_names_who_holds_the_gate(lab: Lab) -> None:
    engine = LocalEngine(lab.policy, EngineConfig(slots=2, context=64, kv_budget_tokens=4096, stall_s=0.05))
    async with engine:
        with lab.policy.gate.write("a long update"), pytest.raises(EngineError, match="a long update"):
            await lab.soon(engine.generate(lab.ask(lab.ids(5))))


async def test_the_event_loop_stays_free_while_the_engine_steps(lab: Lab) -> None:
    async with lab.engine() as engine:
        task = asyncio.ensure_future(engine.generate(lab.ask(lab.ids(5), max_tokens=200)))
        turns = 0
        while not task.done():
            await lab.turn()
            turns += 1
    assert turns > 20


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"slots": 0}, "slots"),
        ({"slots": 64, "max_batch_tokens": 10}, "max_batch_tokens"),
        ({"kv_budget_tokens": 1000}, "kv_budget_tokens"),
        ({"stall_s": 0.0}, "stall_s"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_key(sizes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.{key}"):
        EngineConfig(**sizes)
