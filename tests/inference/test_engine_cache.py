"""Exact counts of work: what is computed once, what is kept, what is computed again."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from treadle.core.ports import CacheHint

Lab = Any


def group(lab: Lab, count: int, *, length: int = 30, trunk: str = "t", most: int = 6) -> list[Any]:
    return [
        lab.ask(
            lab.ids(length),
            f"{trunk}{i}",
            max_tokens=most,
            cache=CacheHint(rollout=f"{trunk}{i}", trunk=trunk, trunk_len=length),
        )
        for i in range(count)
    ]


async def test_a_trunk_is_prefilled_once_for_eight_rollouts(lab: Lab) -> None:
    async with lab.engine() as engine:
        with lab.policy.gate.write("test"):  # all of them are there before the first step
            done = asyncio.ensure_future(lab.all(engine, *group(lab, 8)))
            await lab.turn(3)
        await done
        # 29 trunk tokens once, the prompt's last token once, as all members have it; then 5 of 6 sampled tokens are fed
        # back, and no two members drew the same first token.
        assert lab.counts(engine, "prefilled_tokens", "forward_tokens") == (29 + 1, 29 + 1 + 8 * 5)


async def test_trunk_and_members_run_in_one_step(lab: Lab) -> None:
    async with lab.engine() as engine:
        with lab.policy.gate.write("test"):  # all of them are there before the first step
            done = asyncio.ensure_future(lab.all(engine, *group(lab, 8)))
            await lab.turn(3)
        await done
        assert lab.counts(engine, "steps") == (6,)


async def test_members_that_come_later_share_the_trunk(lab: Lab) -> None:
    requests = group(lab, 8)
    async with lab.engine() as engine:
        await lab.all(engine, *requests[:1])
        with lab.policy.gate.write("test"):
            done = asyncio.ensure_future(lab.all(engine, *requests[1:]))
            await lab.turn(3)
        await done
        # The seven that come together compute the prompt's last token once.
        assert lab.counts(engine, "prefilled_tokens") == (29 + 1 + 1,)


async def test_more_members_than_slots_share_one_trunk(lab: Lab) -> None:
    async with lab.engine(slots=3) as engine:
        with lab.policy.gate.write("test"):
            done = asyncio.ensure_future(lab.all(engine, *group(lab, 16)))
            await lab.turn(3)
        await done
        # The prompt's last token once for all that get a slot in the same step: 3, 3, 3, 3, 3 and 1 members.
        assert lab.counts(engine, "prefilled_tokens") == (29 + 6,)


async def test_a_later_turn_computes_only_what_is_new(lab: Lab) -> None:
    (request,) = group(lab, 1)
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, request)
        before = lab.counts(engine, "prefilled_tokens", "reused_tokens")
        longer = np.concatenate([request.prompt, first.ids, lab.ids(11, 1)])
        await lab.all(engine, lab.ask(longer, "second", cache=request.cache))
        after = lab.counts(engine, "prefilled_tokens", "reused_tokens")
    # The last sampled token was never fed back, so it is computed with the 11 new ones.
    assert (after[0] - before[0], after[1] - before[1]) == (1 + 11, 30 + 5)


async def test_an_edited_context_reuses_its_common_prefix(lab: Lab) -> None:
    (request,) = group(lab, 1)
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, request)
        edited = np.concatenate([request.prompt, first.ids[:3], lab.ids(4, 1)])
        edited[-5] = 3 + (edited[-5] - 2) % 250  # another id than the one sampled there
        before = lab.counts(engine, "prefilled_tokens")[0]
        second = lab.ask(edited, "second", cache=request.cache)
        (done,) = await lab.all(engine, second)
        assert lab.counts(engine, "prefilled_tokens")[0] - before == 5
    assert lab.error(second, done) < 1e-4


async def test_a_context_that_breaks_inside_the_trunk_is_computed_anew(lab: Lab) -> None:
    (request,) = group(lab, 1)
    async with lab.engine() as engine:
        await lab.all(engine, request)
        other = lab.ask(lab.ids(40, 9), "second", cache=request.cache)
        (done,) = await lab.all(engine, other)
        assert lab.counts(engine, "prefilled_tokens") == (30 + 40,)
    assert lab.error(other, done) < 1e-4


async def test_a_trunk_key_with_other_ids_is_not_shared(lab: Lab) -> None:
    one = lab.ask(lab.ids(20, 1), "one", cache=CacheHint(rollout="one", trunk="t", trunk_len=20))
    two = lab.ask(lab.ids(20, 2), "two", cache=CacheHint(rollout="two", trunk="t", trunk_len=20))
    async with lab.engine() as engine:
        done = await lab.all(engine, one, two)
    assert max(lab.error(one, done[0]), lab.error(two, done[1])) < 1e-4


async def test_release_frees_everything(lab: Lab) -> None:
    requests = group(lab, 4)
    async with lab.engine() as engine:
        await lab.all(engine, *requests)
        held = engine.load_signal().kv_tokens
        for key in ("t0", "t1", "t2", "t3", "t"):
            engine.release(key)
        await lab.all(engine, lab.ask(lab.ids(4)))
        assert (held, engine.load_signal().kv_tokens) == (29 + 4 * 6, 0)


async def test_a_trunk_outlives_its_release_while_a_rollout_builds_on_it(lab: Lab) -> None:
    (request,) = group(lab, 1)
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, request)
        engine.release("t")
        longer = lab.ask(np.concatenate([request.prompt, first.ids, lab.ids(3)]), "second", cache=request.cache)
        (done,) = await lab.all(engine, longer)
        assert lab.counts(engine, "prefilled_tokens") == (30 + 4,)
    assert lab.error(longer, done) < 1e-4


async def test_two_requests_of_one_rollout_at_once_are_both_right(lab: Lab) -> None:
    hint = CacheHint(rollout="r")
    one, two = lab.ask(lab.ids(20), "one", cache=hint), lab.ask(lab.ids(25, 1), "two", cache=hint)
    async with lab.engine() as engine:
        done = await lab.all(engine, one, two)
    assert max(lab.error(one, done[0]), lab.error(two, done[1])) < 1e-4


async def test_idle_kv_is_evicted_when_memory_is_short_and_computed_again(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(100, i), f"r{i}", cache=CacheHint(rollout=f"r{i}")) for i in range(60)]
    async with lab.engine(kv_budget_tokens=4096) as engine:
        done = await lab.all(engine, *requests)
        assert lab.counts(engine, "evicted")[0] > 0
        longer = [
            lab.ask(np.concatenate([r.prompt, d.ids, lab.ids(5)]), f"s{i}", cache=r.cache)
            for i, (r, d) in enumerate(zip(requests, done, strict=True))
        ]
        again = await lab.all(engine, *longer)
    assert max(lab.error(r, d) for r, d in zip(longer, again, strict=True)) < 1e-4


async def test_running_requests_that_do_not_fit_are_preempted_and_finish_right(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(60, i), f"r{i}", max_tokens=80) for i in range(20)]
    async with lab.engine(slots=20, kv_budget_tokens=4096) as engine:
        done = await lab.all(engine, *requests)
        assert lab.counts(engine, "preempted")[0] > 0
    assert [len(d.ids) for d in done] == [80] * 20
    assert all(lab.drawn_right(r, d) for r, d in zip(requests, done, strict=True))
    assert max(lab.error(r, d) for r, d in zip(requests, done, strict=True)) < 1e-4
