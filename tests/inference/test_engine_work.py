"""Work is counted, not timed: exact numbers for fixed scenarios.

Four numbers each: tokens prefilled, tokens computed, KV entries copied, forwards. And how many products over keys a
layer's attention is made of in a step that decodes: a level more shows there. At temperature 1 no two rollouts of these
say the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from treadle.core.ports import CacheHint, Completion, Ids, Request
from treadle.inference.attention import StepAttention

Lab = Any


def ask(lab: Lab, prompt: Ids, name: str, group: str, length: int) -> Request:
    """Ten tokens for the rollout that `name` begins with."""
    hint = CacheHint(rollout=name.split("/")[0], trunk=group, trunk_len=length)
    return lab.ask(prompt, name, cache=hint, max_tokens=10)  # type: ignore[no-any-return]


async def together(lab: Lab, engine: Any, requests: Sequence[Request]) -> list[Completion]:
    """All of them are in the queue before the first step, and are answered as a plain forward would."""
    with lab.policy.gate.write("test"):
        done = asyncio.ensure_future(lab.all(engine, *requests))
        await lab.turn(3)
    answers: list[Completion] = await done
    assert max(lab.error(r, d) for r, d in zip(requests, answers, strict=True)) < 1e-4
    return answers


def sizes(lab: Lab) -> Any:
    return lab.engine(context=1024, max_batch_tokens=1024, slots=64, kv_budget_tokens=32768)


def work(lab: Lab, engine: Any) -> tuple[int, ...]:
    prefilled, computed, copied, steps = lab.counts(
        engine, "prefilled_tokens", "forward_tokens", "kv_copied_bytes", "steps"
    )
    return prefilled, computed, copied // engine.kv_bytes_per_token, steps


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Products over keys in the steps' plans."""
    found: set[int] = set()
    plan = StepAttention._plan_singles

    def noting(self: StepAttention) -> None:
        plan(self)
        found.add(len(self._jobs))

    monkeypatch.setattr(StepAttention, "_plan_singles", noting)
    return found


async def three_turns(lab: Lab, engine: Any, prompts: dict[str, Ids]) -> None:
    """Ten tokens, 40 observed ones, three times, for rollouts `group.member`."""
    lengths = {name: len(prompt) for name, prompt in prompts.items()}
    for turn in range(3):
        requests = [ask(lab, p, f"{name}/{turn}", name.split(".")[0], lengths[name]) for name, p in prompts.items()]
        done = await together(lab, engine, requests)
        prompts = {
            name: np.concatenate([r.prompt, d.ids, lab.ids(40, turn)])
            for name, r, d in zip(prompts, requests, done, strict=True)
        }


async def test_a_group_of_eight_with_three_turns(lab: Lab, products: set[int]) -> None:
    async with sizes(lab) as engine:
        await three_turns(lab, engine, {f"a.{i}": lab.ids(150) for i in range(8)})
        # The prompt once; later turns compute the last answer token and the 40 observed ones. Seven of the eight copy
        # the prompt's last entry when they part; before the third turn each outgrows its row with 60 entries.
        prefilled, copied = 150 + 2 * 8 * 41, 7 + 8 * 60
        assert work(lab, engine) == (prefilled, prefilled + 3 * 8 * 9, copied, 30)
    assert products == {2}  # what is each one's own, and the prompt


async def test_two_groups_copy_a_short_system_prompt(lab: Lab, products: set[int]) -> None:
    prompts = {f"{g}.{i}": np.concatenate([lab.ids(120), lab.ids(30, ord(g))]) for g in "ab" for i in range(4)}
    async with sizes(lab) as engine:
        await three_turns(lab, engine, prompts)
        # The second group waits a step for the stem, copies it, and is a step behind in the first turn.
        prefilled, copied = 120 + 2 * 30 + 2 * 8 * 41, 120 + 2 * 3 + 8 * 60
        assert work(lab, engine) == (prefilled, prefilled + 3 * 8 * 9, copied, 31)
    assert max(products) <= 3  # while the second group's prompt is not in its place, a product more


async def test_two_groups_share_a_long_system_prompt_where_it_lies(lab: Lab, products: set[int]) -> None:
    prompts = {f"{g}.{i}": np.concatenate([lab.ids(300), lab.ids(30, ord(g))]) for g in "ab" for i in range(4)}
    async with sizes(lab) as engine:
        await three_turns(lab, engine, prompts)
        prefilled, copied = 300 + 2 * 30 + 2 * 8 * 41, 2 * 3 + 8 * 60
        assert work(lab, engine) == (prefilled, prefilled + 3 * 8 * 9, copied, 30)
        # Held: the stem, two prompts but for their last tokens, and what each rollout said and saw.
        assert engine.load_signal().kv_tokens == 300 + 2 * 29 + 8 * (1 + 9 + 2 * (41 + 9))
    assert products == {3}


async def test_forks_of_a_long_rollout_copy_nothing(lab: Lab) -> None:
    async with sizes(lab) as engine:
        prompt = lab.ids(150)
        (first,) = await together(lab, engine, [ask(lab, prompt, "root/0", "a", 150)])
        longer = np.concatenate([prompt, first.ids, lab.ids(300, 1)])
        (second,) = await together(lab, engine, [ask(lab, longer, "root/1", "a", 150)])
        whole = np.concatenate([longer, second.ids])
        assert work(lab, engine) == (150 + 301, 150 + 301 + 18, 10, 20)  # ten entries moved to a larger row
        ends = [ask(lab, np.concatenate([whole, lab.ids(20, i)]), f"e{i}", "a", 150) for i in range(4)]
        await together(lab, engine, ends)
        inside = [ask(lab, np.concatenate([whole[:-5], lab.ids(20, 9 + i)]), f"i{i}", "a", 150) for i in range(4)]
        await together(lab, engine, inside)
        # Its last token has no entry yet; all else of it is there, and forks inside it compute only what is theirs.
        prefilled = 451 + 4 * 21 + 4 * 20
        assert work(lab, engine) == (prefilled, prefilled + 18 + 2 * 4 * 9, 10, 40)
        assert engine.load_signal().kv_tokens == 469 + 4 * (21 + 9) + 4 * (20 + 9)


async def test_forks_of_a_short_rollout_copy_it(lab: Lab, products: set[int]) -> None:
    async with sizes(lab) as engine:
        prompt = lab.ids(150)
        (first,) = await together(lab, engine, [ask(lab, prompt, "root/0", "a", 150)])
        forks = [
            ask(lab, np.concatenate([prompt, first.ids, lab.ids(20, i)]), f"f{i}", "a", 150) for i in range(4)
        ]
        await together(lab, engine, forks)
        prefilled = 150 + 4 * 21
        assert work(lab, engine) == (prefilled, prefilled + 5 * 9, 4 * 10, 20)
    assert products == {2}


async def test_who_comes_late_takes_over_what_others_are_at(lab: Lab) -> None:
    """One prompt that nobody announced, asked for at three temperatures, in steps that it does not fit into."""
    requests = [lab.ask(lab.ids(400), f"r{i}", temperature=0.5 + i, max_tokens=3) for i in range(3)]
    async with lab.engine(context=1024, max_batch_tokens=64, kv_budget_tokens=32768) as engine:
        await together(lab, engine, requests)
        assert work(lab, engine)[0] == 399 + 3
        assert engine.load_signal().kv_tokens == 0
