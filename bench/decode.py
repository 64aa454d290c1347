"""Single-turn decoding beside `transformers.generate`: the same model, prompts, lengths, thread and minute."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import numpy as np

from bench.machine import machine
from bench.peers_generate import Generate, Rows
from treadle.core.ports import CacheHint, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import Policy

LINE = "sampled tokens per second beside transformers.generate, with prefill and in decode alone"


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=8, help="groups that share a prompt (default 8)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt (default 150)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens (default 64)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, of which the medians count (default 3)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record. Runs alternate, so that a slow minute of the machine meets both."""
    policy = Policy.load(args.model)
    peer = Generate(policy.folder)
    ours: dict[str, list[float]] = {"prefill_s": [], "whole_s": []}
    theirs: dict[str, list[float]] = {"prefill_s": [], "whole_s": []}
    for repeat in range(args.repeats):
        prompts = made(args, policy.dims.vocab, seed=repeat)
        for key, tokens in (("prefill_s", 1), ("whole_s", args.tokens)):
            ours[key].append(asyncio.run(sampled(policy, prompts, args.size, tokens)))
            theirs[key].append(peer.sample(np.repeat(prompts, args.size, axis=0), tokens)[1])
    us, them = figures(ours, args), figures(theirs, args)
    return {
        "ratio_generate": {
            "with_prefill": us["tokens_per_s"] / them["tokens_per_s"],
            "decode_only": us["decode_tokens_per_s"] / them["decode_tokens_per_s"],
        },
        "treadle": us, "transformers_generate": them, "vllm_cpu": vllm(), "batch": args.groups * args.size,
        "groups": args.groups, "prompt_tokens": args.prompt, "new_tokens": args.tokens, "dtype": "float32",
        "repeats": args.repeats, **machine(),
    }


def made(args: argparse.Namespace, vocab: int, *, seed: int) -> Rows:
    """Random prompts [groups, prompt]: an untrained mind, so that siblings part at once and nothing is joined."""
    return np.random.default_rng(seed).integers(100, vocab, (args.groups, args.prompt)).astype(np.int64)


async def sampled(policy: Policy, prompts: Rows, size: int, tokens: int) -> float:
    """Seconds for `tokens` new ones of `size` rollouts of every prompt."""
    rows = len(prompts) * size
    config = EngineConfig(slots=rows, context=512, kv_budget_tokens=64 * 1024)

    def ask(group: int, place: int) -> Request:
        return Request(
            prompt=prompts[group].astype(np.int32), sampling=Sampling(max_tokens=tokens),
            stream=Stream(0).at(group, place),
            cache=CacheHint(rollout=f"{group}.{place}", trunk=f"t{group}", trunk_len=prompts.shape[1]),
        )

    async with LocalEngine(policy, config) as engine:
        begun = time.perf_counter()
        done = await asyncio.gather(*(engine.generate(ask(g, i)) for g in range(len(prompts)) for i in range(size)))
        seconds = time.perf_counter() - begun
    assert all(len(one.ids) == tokens for one in done), "every completion has all its tokens"
    return seconds


def figures(seconds: dict[str, list[float]], args: argparse.Namespace) -> dict[str, float]:
    """Medians, and the speeds that follow."""
    whole, prefill = (statistics.median(seconds[key]) for key in ("whole_s", "prefill_s"))
    decode = statistics.median(w - p for w, p in zip(seconds["whole_s"], seconds["prefill_s"], strict=True))
    rows = args.groups * args.size
    return {
        "whole_s": whole, "prefill_s": prefill, "decode_s": decode, "tokens_per_s": rows * args.tokens / whole,
        "decode_tokens_per_s": rows * (args.tokens - 1) / decode,
    }


def vllm() -> str:
    """What is known of vLLM's CPU build here."""
    try:
        import vllm  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return "missing: not installed"
    return "installed, but this benchmark does not drive it"
