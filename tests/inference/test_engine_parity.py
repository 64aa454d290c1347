"""What the engine samples has the log-probs and entropies of a plain forward, however it was batched."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from treadle.core.ports import CacheHint
from treadle.core.seeds import Stream

Lab = Any
LIMIT = 1e-4


def hint(i: int, groups: int, length: int) -> CacheHint:
    """Rollout i, in one of a few groups."""
    return CacheHint(rollout=f"r{i}", trunk=f"t{i % groups}", trunk_len=length)


async def test_log_probs_and_entropy_equal_a_plain_forward(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(5 + 9 * i), f"r{i}", max_tokens=40) for i in range(8)]
    async with lab.engine() as engine:
        done = await lab.all(engine, *requests)
    assert max(lab.error(r, d) for r, d in zip(requests, done, strict=True)) < LIMIT


async def test_a_group_on_a_shared_trunk_equals_a_plain_forward(lab: Lab) -> None:
    requests = [
        lab.ask(
            lab.ids(30, i % 3),
            f"r{i}",
            max_tokens=40,
            cache=hint(i, 3, 30),
        )
        for i in range(8)
    ]
    async with lab.engine() as engine:
        done = await lab.all(engine, *requests)
    assert max(lab.error(r, d) for r, d in zip(requests, done, strict=True)) < LIMIT


async def test_prompts_longer_than_the_batch_are_prefilled_in_chunks(lab: Lab) -> None:
    requests = [
        lab.ask(lab.ids(200), "r", cache=CacheHint(rollout="r", trunk="t", trunk_len=150)),
        lab.ask(lab.ids(131, 1), "s", max_tokens=30),
    ]
    async with lab.engine(max_batch_tokens=16) as engine:
        done = await lab.all(engine, *requests)
        assert engine.statistics().values["steps"] > 200 // 16
    assert max(lab.error(r, d) for r, d in zip(requests, done, strict=True)) < LIMIT


async def test_later_turns_on_kept_kv_equal_a_plain_forward(lab: Lab) -> None:
    worst = 0.0
    async with lab.engine() as engine:
        contexts = [lab.ids(20, i % 2) for i in range(6)]
        for turn in range(4):
            requests = [
                lab.ask(
                    c,
                    f"{i}.{turn}",
                    max_tokens=10 + i,
                    cache=hint(i, 2, 20),
                )
                for i, c in enumerate(contexts)
            ]
            done = await lab.all(engine, *requests)
            worst = max(worst, *(lab.error(r, d) for r, d in zip(requests, done, strict=True)))
            contexts = [
                np.concatenate([c, d.ids, lab.ids(1 + 5 * i, turn)])
                for i, (c, d) in enumerate(zip(contexts, done, strict=True))
            ]
    assert worst < LIMIT


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.7])
async def test_log_probs_are_after_temperature(lab: Lab, temperature: float) -> None:
    cold = lab.ask(lab.ids(12), "r", max_tokens=20, temperature=temperature)
    warm = lab.ask(lab.ids(12), "s", max_tokens=20)
    async with lab.engine() as engine:
        done = await lab.all(engine, cold, warm)
    assert max(lab.error(cold, done[0]), lab.error(warm, done[1])) < LIMIT


async def test_greedy_takes_the_likeliest_id_of_a_plain_forward(lab: Lab) -> None:
    request = lab.ask(lab.ids(12), temperature=0.0, max_tokens=12)
    async with lab.engine() as engine:
        (done,) = await lab.all(engine, request)
        others = [lab.ask(lab.ids(12), f"r{i}", max_tokens=12) for i in range(30)]
        sampled = await lab.all(engine, *others)
    assert all(done.logprobs[0] >= s.logprobs[0] for s in sampled)


async def test_company_does_not_change_what_a_request_samples(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(6 + i), f"r{i}", max_tokens=25, cache=hint(i, 8, 6)) for i in range(8)]
    async with lab.engine() as engine:
        with lab.policy.gate.write("test"):  # all of them are there before the first step: the same batches each time
            together = asyncio.ensure_future(lab.all(engine, *requests))
            await lab.turn(3)
        company = await together
    async with lab.engine() as engine:
        alone = [(await lab.all(engine, r))[0] for r in requests]
    same = [a.ids.tolist() == b.ids.tolist() for a, b in zip(company, alone, strict=True)]
    # Another batch size rounds otherwise, and a number may fall on the edge between two ids; once, not twice.
    assert sum(same) >= len(same) - 1


async def test_every_id_is_the_inverse_cdf_of_a_plain_forward_at_its_number(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(6 + i), f"r{i}", max_tokens=25, cache=hint(i, 4, 6)) for i in range(20)]
    async with lab.engine() as engine:
        done = await lab.all(engine, *requests)
    assert all(lab.drawn_right(r, d) for r, d in zip(requests, done, strict=True))


async def test_token_j_is_drawn_with_number_j_of_the_stream(lab: Lab) -> None:
    request = lab.ask(lab.ids(9), max_tokens=50)
    async with lab.engine() as engine:
        (done,) = await lab.all(engine, request)
        head = np.concatenate([request.prompt, done.ids[:40]])
        numbers = Stream(5).at("a").uniforms(40, 1)

        class Later(Stream):
            def uniforms(self, start: int, count: int) -> Any:
                return super().uniforms(start + 40, count)

        (tail,) = await lab.all(engine, type(request)(prompt=head, sampling=request.sampling, stream=Later(5, ("a",))))
    assert Later(5, ("a",)).uniforms(0, 1) == numbers
    assert tail.ids[:10].tolist() == done.ids[40:].tolist()
