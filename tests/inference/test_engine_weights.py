"""Weights that change while rollouts are in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from treadle.core.errors import WeightMismatch
from treadle.core.ports import CacheHint, WeightRef
from treadle.inference import LoadMode

Lab = Any


def hint(rollout: str, length: int = 20) -> CacheHint:
    return CacheHint(rollout=rollout, trunk="t", trunk_len=length)


async def test_a_completion_records_both_versions_and_the_age_of_its_kv(lab: Lab) -> None:
    lab.after_logits(5, lab.new_version)
    async with lab.engine() as engine:
        (done,) = await lab.all(engine, lab.ask(lab.ids(20), max_tokens=12, cache=hint("r")))
    assert (done.versions, done.kv_version, done.oldest_version) == (((0, 5), (1, 7)), 0, 0)


async def test_kv_of_a_rollout_in_flight_is_kept_across_an_update(lab: Lab) -> None:
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, lab.ask(lab.ids(20), cache=hint("r")))
        lab.new_version()
        assert await engine.load(WeightRef(version=1)) == 1
        longer = np.concatenate([lab.ids(20), first.ids, lab.ids(5)])
        (second,) = await lab.all(engine, lab.ask(longer, "second", cache=hint("r")))
        assert lab.counts(engine, "prefilled_tokens") == (20 + 6,)
    assert (second.versions, second.kv_version) == (((1, 8),), 0)


async def test_a_new_rollout_never_attaches_to_a_trunk_of_another_version(lab: Lab) -> None:
    async with lab.engine() as engine:
        await lab.all(engine, lab.ask(lab.ids(20), cache=hint("r")))
        lab.new_version(noise=0.05)
        request = lab.ask(lab.ids(20), "s", cache=hint("s"))
        (done,) = await lab.all(engine, request)
        assert lab.counts(engine, "prefilled_tokens") == (40,)
    assert (done.kv_version, done.versions) == (1, ((1, 8),))
    assert lab.error(request, done) < 1e-4


async def test_a_new_rollout_never_joins_a_context_of_another_version(lab: Lab) -> None:
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, lab.ask(lab.ids(20), cache=hint("r")))
        lab.new_version(noise=0.05)
        longer = np.concatenate([lab.ids(20), first.ids, lab.ids(5)])
        old, new = (lab.ask(longer, "same", cache=hint(name)) for name in ("r", "s"))
        with lab.policy.gate.write("test"):  # both are in the queue before the next step
            both = asyncio.ensure_future(lab.all(engine, old, new))
            await lab.turn(3)
        done = await both
        assert lab.counts(engine, "joined_tokens") == (0,)
    assert [d.kv_version for d in done] == [0, 1]
    assert lab.error(new, done[1]) < 1e-4


async def test_siblings_in_flight_across_an_update_still_join(lab: Lab) -> None:
    async with lab.engine() as engine:
        requests = [lab.ask(lab.ids(20), "same", cache=hint(name), max_tokens=4) for name in ("r", "s")]
        with lab.policy.gate.write("test"):
            both = asyncio.ensure_future(lab.all(engine, *requests))
            await lab.turn(3)
        first = await both
        before = lab.counts(engine, "joined_tokens")[0]
        lab.new_version(noise=0.05)
        longer = np.concatenate([lab.ids(20), first[0].ids, lab.ids(5)])
        requests = [lab.ask(longer, "again", cache=hint(name), max_tokens=4) for name in ("r", "s")]
        with lab.policy.gate.write("test"):
            both = asyncio.ensure_future(lab.all(engine, *requests))
            await lab.turn(3)
        done = await both
        assert lab.counts(engine, "joined_tokens")[0] - before == 4
    assert [d.kv_version for d in done] == [0, 0]


async def test_a_trunk_in_the_making_is_started_again_by_an_update(lab: Lab) -> None:
    warm = lab.ask(lab.ids(4), "warm", max_tokens=30)
    late = lab.ask(lab.ids(200), "late", cache=hint("late", 200))
    lab.after_logits(4, lambda: lab.new_version(noise=0.05))  # the trunk needs more than ten steps of 16 tokens
    async with lab.engine(max_batch_tokens=16) as engine:
        _, done = await lab.all(engine, warm, late)
    assert (done.kv_version, done.versions) == (1, ((1, 8),))
    assert lab.error(late, done) < 1e-4


async def test_no_part_of_a_prompt_that_begins_anew_is_of_the_version_before(lab: Lab) -> None:
    stem, warm = lab.ids(150), lab.ask(lab.ids(4), "warm", max_tokens=40)
    late = [
        lab.ask(
            np.concatenate([stem, lab.ids(100, i)]), f"late{i}",
            cache=CacheHint(rollout=f"late{i}", trunk=f"t{i}", trunk_len=250),
        )
        for i in range(2)
    ]
    lab.after_logits(16, lambda: lab.new_version(noise=0.05))  # the shared stem is whole, the prompts are not
    async with lab.engine(max_batch_tokens=16, context=512) as engine:
        _, *done = await lab.all(engine, warm, *late)
    assert [(d.kv_version, d.versions) for d in done] == [(1, ((1, 8),))] * 2
    assert max(lab.error(r, d) for r, d in zip(late, done, strict=True)) < 1e-4


async def test_load_drops_trunks_that_nobody_builds_on(lab: Lab) -> None:
    async with lab.engine() as engine:
        await lab.all(engine, lab.ask(lab.ids(20), cache=hint("r")))
        engine.release("r")
        lab.new_version()
        await engine.load(WeightRef(version=1))
        assert engine.load_signal().kv_tokens == 0


async def test_recompute_forgets_the_kv_of_everybody(lab: Lab) -> None:
    async with lab.engine() as engine:
        (first,) = await lab.all(engine, lab.ask(lab.ids(20), cache=hint("r")))
        lab.new_version(noise=0.05)
        await engine.load(WeightRef(version=1), LoadMode.RECOMPUTE)
        longer = lab.ask(np.concatenate([lab.ids(20), first.ids, lab.ids(5)]), "second", cache=hint("r"))
        (done,) = await lab.all(engine, longer)
    assert done.kv_version == 1
    assert lab.error(longer, done) < 1e-4


async def test_recompute_in_flight_remembers_the_age_of_what_it_sampled(lab: Lab) -> None:
    async with lab.engine() as engine:
        pause = lab.pause_after(5)
        task = asyncio.ensure_future(engine.generate(lab.ask(lab.ids(20), max_tokens=12, cache=hint("r"))))
        await lab.soon(pause.reached.wait())
        lab.new_version()
        load = asyncio.ensure_future(engine.load(WeightRef(version=1), LoadMode.RECOMPUTE))
        await lab.turn(2)
        pause.go()
        await lab.soon(load)
        done = await lab.soon(task)
        # The prompt twice, and four of the five sampled tokens; the fifth was due to be fed anyway.
        assert lab.counts(engine, "prefilled_tokens") == (20 + 20 + 4,)
    assert (done.versions, done.kv_version) == (((0, 5), (1, 7)), 0)


async def test_drain_lets_what_runs_end_and_starts_nothing_new_before(lab: Lab) -> None:
    order: list[str] = []
    async with lab.engine(slots=2) as engine:
        pause = lab.pause_after(1)
        early = asyncio.ensure_future(engine.generate(lab.ask(lab.ids(6), "a", max_tokens=20)))
        await lab.soon(pause.reached.wait())
        load = asyncio.ensure_future(engine.load(WeightRef(version=0), LoadMode.DRAIN))
        await lab.turn(2)
        late = asyncio.ensure_future(engine.generate(lab.ask(lab.ids(6), "c", max_tokens=1)))
        await lab.turn(2)
        for name, future in (("early", early), ("load", load), ("late", late)):
            future.add_done_callback(lambda _, name=name: order.append(name))
        pause.go()
        await lab.soon(asyncio.gather(early, load, late))
        await lab.turn()
    assert order == ["early", "load", "late"]


async def test_weights_older_than_published_are_a_mismatch(lab: Lab) -> None:
    async with lab.engine() as engine:
        with pytest.raises(WeightMismatch, match="3"):
            await engine.load(WeightRef(version=3))


async def test_updates_at_any_time_leave_every_token_with_one_version(lab: Lab) -> None:
    def update() -> None:
        with lab.policy.gate.write("update", timeout_s=20):
            lab.policy.version += 1

    async with lab.engine() as engine:
        tasks = [
            asyncio.ensure_future(engine.generate(lab.ask(lab.ids(9, i), f"r{i}", max_tokens=60))) for i in range(8)
        ]
        for _ in range(5):
            await asyncio.to_thread(update)
        done = await lab.soon(asyncio.gather(*tasks))
    for completion in done:
        versions = [v for v, _ in completion.versions]
        assert versions == sorted(set(versions))
        assert completion.kv_version <= versions[0]
