"""Several turns beside the plain loop over `transformers.generate`, which computes the whole path anew each turn."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import numpy as np

from bench.decode import made
from bench.machine import machine
from bench.peers_generate import Generate, Rows
from treadle.core.ports import CacheHint, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import Policy

LINE = "multi-turn rollouts beside a loop over transformers.generate that prefills every turn again"


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=4, help="groups that share a prompt (default 4)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt (default 150)")
    parser.add_argument("--turns", type=int, default=4, help="turns (default 4)")
    parser.add_argument("--tokens", type=int, default=60, help="new tokens of a turn (default 60)")
    parser.add_argument("--observed", type=int, default=40, help="tokens of the world between turns (default 40)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, of which the medians count (default 3)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record. Runs alternate."""
    policy = Policy.load(args.model)
    peer = Generate(policy.folder)
    ours, theirs, work = [], [], dict[str, float]()
    for repeat in range(args.repeats):
        prompts = made(args, policy.dims.vocab, seed=repeat)
        world = np.random.default_rng(repeat).integers(
            100, policy.dims.vocab, (args.groups * args.size, args.turns, args.observed)
        )
        seconds, work = asyncio.run(played(policy, prompts, world, args))
        ours.append(seconds)
        theirs.append(looped(peer, prompts, world, args))
    us, them = statistics.median(ours), statistics.median(theirs)
    tokens = args.groups * args.size * args.turns * args.tokens
    return {
        "ratio_reprefill": them / us, "treadle": {"seconds": us, "tokens_per_s": tokens / us, "work": work},
        "transformers_generate": {"seconds": them, "tokens_per_s": tokens / them}, "rollouts": args.groups * args.size,
        "turns": args.turns, "prompt_tokens": args.prompt, "new_tokens": args.tokens, "observed_tokens": args.observed,
        "dtype": "float32", "repeats": args.repeats, **machine(),
    }


async def played(
    policy: Policy, prompts: Rows, world: Rows, args: argparse.Namespace
) -> tuple[float, dict[str, float]]:
    """Seconds for all rollouts, each going on as soon as its own turn is over; and what the engine computed."""
    config = EngineConfig(slots=args.groups * args.size, context=1024, kv_budget_tokens=64 * 1024)

    async def rollout(group: int, place: int) -> None:
        ids, key = prompts[group].astype(np.int32), f"{group}.{place}"
        for turn in range(args.turns):
            done = await engine.generate(Request(
                prompt=ids, sampling=Sampling(max_tokens=args.tokens), stream=Stream(0).at(group, place, turn),
                cache=CacheHint(rollout=key, trunk=f"t{group}", trunk_len=args.prompt),
            ))
            seen = world[group * args.size + place, turn].astype(np.int32)
            ids = np.concatenate([ids, done.ids, seen])

    async with LocalEngine(policy, config) as engine:
        begun = time.perf_counter()
        await asyncio.gather(*(rollout(g, i) for g in range(args.groups) for i in range(args.size)))
        seconds = time.perf_counter() - begun
        work = engine.statistics().values
    kept = ("steps", "forward_tokens", "prefilled_tokens", "sampled_tokens", "reused_tokens", "kv_copied_bytes")
    return seconds, {name: work[name] for name in kept}


def looped(peer: Generate, prompts: Rows, world: Rows, args: argparse.Namespace) -> float:
    """Seconds for the same in a loop: all rollouts in one batch of equal lengths, so that nothing is padded."""
    rows, total = np.repeat(prompts, args.size, axis=0), 0.0
    for turn in range(args.turns):
        out, seconds = peer.sample(rows, args.tokens)
        total += seconds
        rows = np.concatenate([out, world[:, turn]], axis=1)
    return total
