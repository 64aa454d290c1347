"""Requests with equal tokens share one context, part when they draw differently, and come out as if alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from treadle.core.errors import EngineError
from treadle.core.ports import CacheHint, Completion, Request
from treadle.core.seeds import Stream
from treadle.inference.flight import prepare

Lab = Any


def sibling(
    lab: Lab, i: int, *, stream: str = "", prompt: Any = None, temperature: float = 0.03, **how: Any
) -> Request:
    """Rollout i of one group, cold enough that siblings agree for a while."""
    prompt = lab.ids(30) if prompt is None else prompt
    hint = CacheHint(rollout=f"r{i}", trunk="t", trunk_len=30)
    return lab.ask(prompt, stream or f"r{i}", cache=hint, temperature=temperature, **how)  # type: ignore[no-any-return]


async def together(lab: Lab, engine: Any, requests: Sequence[Request]) -> list[Completion]:
    """All of them are in the queue before the first step."""
    with lab.policy.gate.write("test"):
        done = asyncio.ensure_future(lab.all(engine, *requests))
        await lab.turn(3)
    return await done  # type: ignore[no-any-return]


def contexts(requests: Sequence[Request], done: Sequence[Completion]) -> set[tuple[int, ...]]:
    """Distinct prefixes that have to be computed: every token but the last one sampled, in its context."""
    whole = [(*r.prompt.tolist(), *d.ids.tolist()) for r, d in zip(requests, done, strict=True)]
    return {ids[:n] for ids in whole for n in range(1, len(ids))}


def right(lab: Lab, requests: Sequence[Request], done: Sequence[Completion]) -> bool:
    """Whether all are what a plain forward gives."""
    pairs = list(zip(requests, done, strict=True))
    return all(lab.error(r, d) < 1e-4 for r, d in pairs) and all(
        lab.drawn_right(r, d) for r, d in pairs if r.sampling.temperature
    )


async def test_equal_tokens_in_equal_contexts_are_computed_once(lab: Lab) -> None:
    requests = [sibling(lab, i, max_tokens=12) for i in range(8)]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        forwarded, joined = lab.counts(engine, "forward_tokens", "joined_tokens")
    assert forwarded == len(contexts(requests, done)) < 29 + 8 * 12
    assert joined == 8 * 12 - (forwarded - 29) > 0
    assert right(lab, requests, done)


async def test_siblings_that_never_part_cost_as_much_as_one(lab: Lab) -> None:
    requests = [sibling(lab, i, stream="same", max_tokens=9) for i in range(5)]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        assert lab.counts(engine, "forward_tokens", "steps", "joined_tokens") == (30 + 8, 9, 4 * 9)
        assert engine.load_signal().kv_tokens == 30 + 8
    assert len({tuple(d.ids) for d in done}) == 1
    assert all(d.versions == done[0].versions and np.array_equal(d.logprobs, done[0].logprobs) for d in done)


async def test_company_with_the_same_tokens_does_not_change_what_a_request_samples(lab: Lab) -> None:
    requests = [sibling(lab, i, max_tokens=20) for i in range(8)]
    async with lab.engine() as engine:
        company = await together(lab, engine, requests)
    async with lab.engine() as engine:
        alone = [(await lab.all(engine, r))[0] for r in requests]
    same = [a.ids.tolist() == b.ids.tolist() for a, b in zip(company, alone, strict=True)]
    assert sum(same) >= len(same) - 1  # a number may fall on the edge between two ids


async def test_later_turns_share_what_siblings_said_and_heard_alike(lab: Lab) -> None:
    prompts, known = [lab.ids(30)] * 6, set[tuple[int, ...]]()
    async with lab.engine() as engine:
        for turn in range(3):
            requests = [sibling(lab, i, stream=f"{i}.{turn}", prompt=p, max_tokens=6) for i, p in enumerate(prompts)]
            done = await together(lab, engine, requests)
            known |= contexts(requests, done)
            assert lab.counts(engine, "forward_tokens") == (len(known),)
            assert right(lab, requests, done)
            prompts = [np.concatenate([r.prompt, d.ids, lab.ids(4, turn)]) for r, d in zip(requests, done, strict=True)]


async def test_groups_with_one_system_prompt_compute_it_once(lab: Lab) -> None:
    prompts = [np.concatenate([lab.ids(20), lab.ids(10, g)]) for g in range(1, 5)]
    requests = [
        lab.ask(p, f"{g}.{i}", cache=CacheHint(rollout=f"{g}.{i}", trunk=f"t{g}", trunk_len=30), max_tokens=3)
        for g, p in enumerate(prompts) for i in range(2)
    ]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        # The stem once, then what is each group's own, the prompt's last token included.
        assert lab.counts(engine, "prefilled_tokens", "steps") == (20 + 4 * 10, 4)
        for name in [f"{g}.{i}" for g in range(4) for i in range(2)] + [f"t{g}" for g in range(4)]:
            engine.release(name)
        await lab.all(engine, lab.ask(lab.ids(4)))
        assert engine.load_signal().kv_tokens == 0
    assert right(lab, requests, done)


async def test_groups_with_equal_prompts_compute_one(lab: Lab) -> None:
    requests = [
        lab.ask(lab.ids(30), f"{g}", cache=CacheHint(rollout=f"{g}", trunk=f"t{g}", trunk_len=30), max_tokens=3)
        for g in range(3)
    ]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        assert lab.counts(engine, "prefilled_tokens") == (29 + 1,)
    assert right(lab, requests, done)


async def test_a_long_stem_is_waited_for_until_it_is_whole(lab: Lab) -> None:
    prompts = [np.concatenate([lab.ids(90), lab.ids(10, g)]) for g in range(1, 4)]
    requests = [
        lab.ask(p, f"{g}", cache=CacheHint(rollout=f"{g}", trunk=f"t{g}", trunk_len=100), max_tokens=3)
        for g, p in enumerate(prompts)
    ]
    async with lab.engine(max_batch_tokens=16) as engine:
        done = await together(lab, engine, requests)
        assert lab.counts(engine, "prefilled_tokens") == (90 + 3 * 10,)
    assert right(lab, requests, done)


async def test_who_waits_for_a_stem_goes_on_when_its_makers_give_up(lab: Lab) -> None:
    prompts = [np.concatenate([lab.ids(90), lab.ids(10, g)]) for g in range(1, 3)]
    first, second = (
        lab.ask(p, f"{g}", cache=CacheHint(rollout=f"{g}", trunk=f"t{g}", trunk_len=100), max_tokens=3)
        for g, p in enumerate(prompts)
    )
    async with lab.engine(max_batch_tokens=16) as engine:
        with lab.policy.gate.write("test"):
            tasks = [asyncio.ensure_future(engine.generate(r)) for r in (first, second)]
            await lab.turn(3)
        async with asyncio.timeout(30):
            while not lab.counts(engine, "steps")[0]:
                await lab.turn()
        tasks[0].cancel()
        done = await lab.soon(tasks[1])
    assert right(lab, [second], [done])


async def test_a_sibling_that_comes_late_copies_what_the_others_have(lab: Lab) -> None:
    first = [sibling(lab, i, stream="same", max_tokens=5) for i in range(2)]
    async with lab.engine() as engine:
        done = await together(lab, engine, first)
        longer = np.concatenate([lab.ids(30), done[0].ids, lab.ids(6, 1)])
        ahead, late = (sibling(lab, i, stream=f"s{i}", prompt=longer, max_tokens=7) for i in range(2))
        pause = lab.pause_after(2)
        going = asyncio.ensure_future(engine.generate(ahead))
        await lab.soon(pause.reached.wait())
        before = lab.counts(engine, "prefilled_tokens")
        waiting = asyncio.ensure_future(engine.generate(late))
        await lab.turn(3)
        pause.go()
        answers = [await lab.soon(going), await lab.soon(waiting)]
        after = lab.counts(engine, "prefilled_tokens")
    # All but its last token is there: the first turn's 34 entries, and what the one ahead has computed of the second.
    assert after[0] - before[0] == 1
    assert right(lab, [ahead, late], answers)


async def test_one_of_several_is_cancelled_and_the_others_go_on(lab: Lab) -> None:
    requests = [sibling(lab, i, stream="same", max_tokens=10) for i in range(4)]
    async with lab.engine() as engine:
        pause = lab.pause_after(4)
        tasks = [asyncio.ensure_future(engine.generate(r)) for r in requests]
        await lab.soon(pause.reached.wait())
        tasks[0].cancel()
        tasks[3].cancel()
        await lab.turn(3)
        pause.go()
        done = [await lab.soon(tasks[1]), await lab.soon(tasks[2])]
        assert lab.counts(engine, "cancelled", "finished") == (2, 2)
        for key in ("r0", "r1", "r2", "r3", "t"):
            engine.release(key)
        await lab.all(engine, lab.ask(lab.ids(4)))
        assert engine.load_signal().kv_tokens == 0
    assert right(lab, requests[1:3], done)


async def test_all_of_several_are_cancelled_and_their_kv_goes(lab: Lab) -> None:
    requests = [sibling(lab, i, stream="same", max_tokens=10) for i in range(3)]
    async with lab.engine() as engine:
        pause = lab.pause_after(2)
        tasks = [asyncio.ensure_future(engine.generate(r)) for r in requests]
        await lab.soon(pause.reached.wait())
        for task in tasks:
            task.cancel()
        await lab.turn(3)
        pause.go()
        await lab.all(engine, lab.ask(lab.ids(4)))
        assert lab.counts(engine, "cancelled", "running") == (3, 0)
        assert engine.load_signal().kv_tokens == 29  # the trunk, until it is released


async def test_a_rollout_that_is_over_takes_nothing_from_its_siblings(lab: Lab) -> None:
    requests = [sibling(lab, i, stream="same", max_tokens=6) for i in range(3)]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        engine.release("r0")
        longer = [
            sibling(lab, i, stream=f"s{i}", prompt=np.concatenate([lab.ids(30), done[i].ids, lab.ids(3)]), max_tokens=5)
            for i in (1, 2)
        ]
        before = lab.counts(engine, "prefilled_tokens")[0]
        again = await together(lab, engine, longer)
        assert lab.counts(engine, "prefilled_tokens")[0] - before == 1 + 3
    assert right(lab, longer, again)


async def test_other_temperatures_do_not_share(lab: Lab) -> None:
    requests = [sibling(lab, i, stream="same", temperature=t, max_tokens=4) for i, t in enumerate((0.0, 0.5, 1.0))]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
        assert lab.counts(engine, "joined_tokens") == (0,)
    assert right(lab, requests, done)


async def test_without_room_to_part_a_request_is_computed_again(lab: Lab) -> None:
    requests = [sibling(lab, i, max_tokens=150, temperature=0.3) for i in range(40)]
    async with lab.engine(slots=40, kv_budget_tokens=4096) as engine:
        done = await together(lab, engine, requests)
        assert lab.counts(engine, "preempted")[0] > 0
        for i in range(40):
            engine.release(f"r{i}")
        engine.release("t")
        await lab.all(engine, lab.ask(lab.ids(4)))
        assert engine.load_signal().kv_tokens == 0
    assert [len(d.ids) for d in done] == [150] * 40
    assert right(lab, requests, done)


async def test_a_failing_decode_ends_one_request_and_not_those_beside_it(lab: Lab) -> None:
    def decode(ids: Sequence[int]) -> str:
        raise RuntimeError("no text")

    sound = [sibling(lab, i, stream="same", max_tokens=6) for i in range(3)]
    bad = sibling(lab, 9, stream="same", max_tokens=6, stop_strings=("x",))
    async with lab.engine(decode=decode) as engine:
        with lab.policy.gate.write("test"):
            tasks = [asyncio.ensure_future(engine.generate(r)) for r in (*sound, bad)]
            await lab.turn(3)
        done = [await lab.soon(task) for task in tasks[:3]]
        with pytest.raises(EngineError, match="no text"):
            await lab.soon(tasks[3])
        assert lab.counts(engine, "finished", "failed") == (3, 1)
    assert right(lab, sound, done)


async def test_tokens_keep_their_own_streams(lab: Lab) -> None:
    requests = [sibling(lab, i, temperature=1.0, max_tokens=5) for i in range(8)]
    async with lab.engine() as engine:
        done = await together(lab, engine, requests)
    first = {Stream(5).at(f"r{i}").uniforms(0, 1)[0]: int(d.ids[0]) for i, d in enumerate(done)}
    ordered = [first[u] for u in sorted(first)]
    assert ordered == sorted(ordered)  # one CDF, read at eight numbers
    assert right(lab, requests, done)


async def test_who_is_admitted_before_memory_runs_out_stands_in_order(lab: Lab) -> None:
    worker = lab.engine(context=1024, max_batch_tokens=64, kv_budget_tokens=4096)._worker  # never started
    scheduler, delivered = worker.scheduler, list[object]()

    def submit(seed: int, priority: int) -> None:
        request = lab.ask(lab.ids(900, seed), f"r{seed}", priority=priority)
        scheduler.submit(prepare(request, context=1024, vocab=259, can_decode=False, deliver=delivered.append))

    submit(0, 5)
    scheduler.plan(0)
    for seed in range(1, 5):  # a row of 1024 each: three more fit, the last one does not
        submit(seed, 5 - seed)
    scheduler.plan(0)
    assert [flight.order[0] for flight in scheduler.running] == [1, 2, 3, 5]
    assert (scheduler.waiting, delivered) == (1, [])
