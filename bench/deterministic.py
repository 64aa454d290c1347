"""What deterministic mode costs, and whether it holds.

The load is what training asks for: groups of siblings that share a prompt, two turns each, a few tokens from the world
in between. It is played without the mode, with it, and with it once more in another company (a quarter of the slots,
the other way round). The last two must agree to the last bit of every log-prob.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace

import numpy as np

from bench.machine import machine
from treadle.core.ports import CacheHint, Completion, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import Policy

LINE = "deterministic mode: sampled tokens per second with and without it, and whether company changes a bit"
PROMPT, ANSWER, TURNS = 80, 12, 2


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--models", default="tiny,smollm2-135m", help="models, by comma (default tiny,smollm2-135m)")
    parser.add_argument("--groups", type=int, default=4, help="how many groups (default 4)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--tokens", type=int, default=24, help="sampled tokens of a turn (default 24)")
    parser.add_argument("--rows", type=int, default=32, help="rows of a forward in deterministic mode (default 32)")
    parser.add_argument("--slots", type=int, default=32, help="slots (default 32)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    found = {name: asyncio.run(compared(Policy.load(name), args)) for name in args.models.split(",")}
    return {
        "models": found, "bitwise_equal": all(model["bitwise_equal"] for model in found.values()),
        "rows": args.rows, "slots": args.slots, "rollouts": args.groups * args.size, "turns": TURNS,
        "tokens_per_turn": args.tokens, **machine(),
    }


async def compared(policy: Policy, args: argparse.Namespace) -> dict[str, float | bool]:
    """One model: without, with, and with in other company."""
    plain = EngineConfig(slots=args.slots, context=512, kv_budget_tokens=16384, rows=args.rows)
    mode = replace(plain, deterministic=True)
    without_s, sampled = await played(policy, plain, args)
    with_s, first = await played(policy, mode, args)
    _, second = await played(policy, replace(mode, slots=max(1, args.slots // 4)), args, backwards=True)
    tokens = sum(len(done.ids) for done in sampled.values())
    return {
        "tokens_per_s": tokens / without_s, "deterministic_tokens_per_s": tokens / with_s,
        "times_slower": with_s / without_s,
        "bitwise_equal": all(same(first[key], second[key]) for key in first),
    }


Played = dict[tuple[int, int, int], Completion]
"""Completions by group, place in it and turn."""


async def played(
    policy: Policy, config: EngineConfig, args: argparse.Namespace, *, backwards: bool = False
) -> tuple[float, Played]:
    """Seconds, and what was sampled."""
    random = np.random.default_rng(0)
    prompts = random.integers(3, policy.dims.vocab, (args.groups, PROMPT)).astype(np.int32)
    answer = random.integers(3, policy.dims.vocab, ANSWER).astype(np.int32)
    done: Played = {}

    async def rollout(group: int, place: int) -> None:
        ids, key = prompts[group], f"{group}.{place}"
        for turn in range(TURNS):
            completion = done[group, place, turn] = await engine.generate(Request(
                prompt=ids, sampling=Sampling(max_tokens=args.tokens), stream=Stream(0).at(group, place, turn),
                cache=CacheHint(rollout=key, trunk=f"t{group}", trunk_len=PROMPT),
            ))
            ids = np.concatenate([ids, completion.ids, answer])
        engine.release(key)

    members = [(group, place) for group in range(args.groups) for place in range(args.size)]
    async with LocalEngine(policy, config) as engine:
        await engine.generate(Request(prompt=answer, sampling=Sampling(max_tokens=4), stream=Stream(1)))  # warms up
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for member in reversed(members) if backwards else members:
                tasks.create_task(rollout(*member))
        return time.perf_counter() - begun, done


def same(one: Completion, other: Completion) -> bool:
    """Whether two completions agree to the last bit."""
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.logprobs, other.logprobs)
