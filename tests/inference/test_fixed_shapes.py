"""Deterministic mode: to the last bit, a token depends on the weights, its own context and its stream alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from treadle.core.errors import ConfigError, ModelError
from treadle.core.ports import CacheHint, Completion, Request
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig
from treadle.testing import check_engine

Lab = Any


def fixed(lab: Lab, **sizes: int) -> Any:
    """An engine in deterministic mode."""
    return lab.engine(**{"deterministic": True, "rows": 8} | sizes)


def crowd(lab: Lab) -> list[Request]:
    """Three groups of siblings, the coldest of which say the same for long, and four strangers with long prompts."""
    siblings = [
        lab.ask(
            lab.ids(30 + g, g), f"{g}.{i}", temperature=(0.05, 0.6, 1.0)[g], max_tokens=14,
            cache=CacheHint(rollout=f"{g}.{i}", trunk=f"t{g}", trunk_len=30 + g),
        )
        for g in range(3) for i in range(4)
    ]
    return siblings + [lab.ask(lab.ids(5 + 40 * i, 9), f"s{i}", max_tokens=25) for i in range(4)]


def differ(some: Sequence[Completion], others: Sequence[Completion]) -> list[int]:
    """Where two lists of completions are not the same to the last bit."""
    return [
        i for i, (a, b) in enumerate(zip(some, others, strict=True))
        if not all(np.array_equal(getattr(a, x), getattr(b, x)) for x in ("ids", "logprobs", "entropy"))
    ]


async def test_company_changes_no_bit(lab: Lab) -> None:
    requests = crowd(lab)
    async with fixed(lab) as engine:
        together = await lab.all(engine, *requests)
        assert lab.counts(engine, "joined_tokens")[0] > 0
    async with fixed(lab) as engine:
        alone = [(await lab.all(engine, replace(r, cache=None)))[0] for r in requests]
    assert differ(together, alone) == []


@pytest.mark.parametrize(("slots", "step"), [(2, 1), (5, 1), (16, -1)])
async def test_neither_slots_nor_the_order_of_arrival_change_a_bit(lab: Lab, slots: int, step: int) -> None:
    requests = crowd(lab)
    async with fixed(lab) as engine:
        wanted = await lab.all(engine, *requests)
    async with fixed(lab, slots=slots) as engine:
        found = await lab.all(engine, *requests[::step])
    assert differ(wanted, found[::step]) == []


async def test_requests_that_come_while_others_run_keep_their_bits(lab: Lab) -> None:
    requests = crowd(lab)
    async with fixed(lab) as engine:
        wanted = await lab.all(engine, *requests)
    async with fixed(lab, slots=16) as engine:
        tasks = []
        for i, request in enumerate(requests):
            tasks.append(asyncio.ensure_future(engine.generate(request)))
            await lab.turn(40 * (i % 3))
        found = [await lab.soon(task) for task in tasks]
    assert differ(wanted, found) == []


@pytest.mark.parametrize("cut", [1, 7, 25])
async def test_a_prefilled_token_leads_to_the_bits_of_a_decoded_one(lab: Lab, cut: int) -> None:
    class Later(Stream):
        def uniforms(self, start: int, count: int) -> Any:
            return super().uniforms(start + cut, count)

    request = lab.ask(lab.ids(9), max_tokens=40)
    async with fixed(lab) as engine:
        (whole,) = await lab.all(engine, request)
        head = np.concatenate([request.prompt, whole.ids[:cut]])
        sampling = replace(request.sampling, max_tokens=40 - cut)
        (rest,) = await lab.all(engine, replace(request, prompt=head, sampling=sampling, stream=Later(5, ("a",))))
    assert rest.ids.tolist() == whole.ids[cut:].tolist()
    assert np.array_equal(rest.logprobs, whole.logprobs[cut:])
    assert np.array_equal(rest.entropy, whole.entropy[cut:])


async def test_kept_kv_has_the_bits_of_kv_that_is_computed_again(lab: Lab) -> None:
    prompts = [lab.ids(20)] * 5
    async with fixed(lab) as keeping, fixed(lab) as plain:
        for turn in range(3):
            requests = [
                lab.ask(
                    prompt, f"{i}.{turn}", temperature=0.3, max_tokens=6,
                    cache=CacheHint(rollout=f"r{i}", trunk="t", trunk_len=20),
                )
                for i, prompt in enumerate(prompts)
            ]
            done = await lab.all(keeping, *requests)
            again = await lab.all(plain, *(replace(r, cache=None) for r in reversed(requests)))
            assert differ(done, again[::-1]) == []
            prompts = [np.concatenate([r.prompt, d.ids, lab.ids(4, turn)]) for r, d in zip(requests, done, strict=True)]
        assert lab.counts(keeping, "reused_tokens")[0] > 0


async def test_after_an_update_a_token_has_the_bits_of_one_whose_whole_context_is_new(lab: Lab) -> None:
    class Later(Stream):
        def uniforms(self, start: int, count: int) -> Any:
            return super().uniforms(start + 5, count)

    request = lab.ask(lab.ids(20), max_tokens=12, cache=CacheHint(rollout="r", trunk="t", trunk_len=20))
    async with fixed(lab) as engine:
        lab.after_logits(5, lambda: lab.new_version(noise=0.05))
        (done,) = await lab.all(engine, request)
        head = np.concatenate([request.prompt, done.ids[:5]])
        again = lab.ask(head, max_tokens=7)
        (rest,) = await lab.all(engine, replace(again, stream=Later(5, ("a",))))
    assert done.versions == ((0, 5), (1, 7))
    assert rest.ids.tolist() == done.ids[5:].tolist()
    assert np.array_equal(rest.logprobs, done.logprobs[5:])


async def test_want_of_memory_changes_no_bit(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(30), f"r{i}", max_tokens=100) for i in range(40)]
    async with fixed(lab, slots=40, rows=32, kv_budget_tokens=32768) as engine:
        wanted = await lab.all(engine, *requests)
        assert lab.counts(engine, "preempted") == (0,)
    async with fixed(lab, slots=40, rows=32, kv_budget_tokens=4096) as engine:
        found = await lab.all(engine, *requests)
        assert lab.counts(engine, "preempted")[0] > 0
    assert differ(wanted, found) == []


async def test_every_forward_has_one_shape(lab: Lab) -> None:
    shapes: set[tuple[int, int]] = set()
    hidden, logits = lab.policy.hidden, lab.policy.logits

    def noting(ids: torch.Tensor, pos: torch.Tensor, plan: Any, sums: Any = None) -> Any:
        shapes.add((len(ids), len(pos)))
        return hidden(ids, pos, plan, sums)

    def noting_too(states: torch.Tensor) -> Any:
        shapes.add((len(states), len(states)))
        return logits(states)

    lab.policy.hidden, lab.policy.logits = noting, noting_too
    async with fixed(lab) as engine:
        await lab.all(engine, *crowd(lab))
        steps, forwarded, padded = lab.counts(engine, "steps", "forward_tokens", "padded_tokens")
    assert shapes == {(8, 8)}
    assert forwarded + padded == 8 * steps
    assert padded > 0


async def test_more_contexts_than_rows_take_turns(lab: Lab) -> None:
    requests = [lab.ask(lab.ids(3 + i, i), f"r{i}", max_tokens=6) for i in range(12)]
    async with fixed(lab, rows=3, slots=12) as engine:
        done = await lab.all(engine, *requests)
    assert [len(d.ids) for d in done] == [6] * 12


async def test_what_is_sampled_has_the_log_probs_of_a_plain_forward(lab: Lab) -> None:
    requests = crowd(lab)
    async with fixed(lab) as engine:
        done = await lab.all(engine, *requests)
    pairs = list(zip(requests, done, strict=True))
    assert max(lab.error(r, d) for r, d in pairs) < 1e-4
    assert all(lab.drawn_right(r, d) for r, d in pairs)


async def test_it_is_an_engine_like_any_other(lab: Lab) -> None:
    await check_engine(lambda: fixed(lab), vocab=259, context=256)


async def test_a_row_that_does_not_keep_its_bits_is_noticed_before_anything_is_served(lab: Lab) -> None:
    plain = lab.policy.hidden

    def by_place(ids: torch.Tensor, pos: torch.Tensor, plan: Any) -> Any:
        return plain(ids, pos, plan) + 1e-6 * torch.arange(len(ids))[:, None]

    def by_neighbours(ids: torch.Tensor, pos: torch.Tensor, plan: Any) -> Any:
        return plain(ids, pos, plan) + 1e-6 * ids.sum()

    for disturbed in (by_place, by_neighbours):
        lab.policy.hidden = disturbed
        with pytest.raises(ModelError, match=r"bits depend on its place or on its neighbours.*set engine\.rows=1"):
            async with fixed(lab):
                pass


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rows": 0}, r"engine\.rows: got 0, expected at least 1"),
        ({"deterministic": True, "copies": True}, r"engine\.copies=true contradicts engine\.deterministic=true"),
    ],
)
def test_a_mode_that_cannot_be_is_refused_by_key(values: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineConfig(**values)
