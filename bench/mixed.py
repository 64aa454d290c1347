"""What mixed precision brings and costs: the same work with float32 products and with bfloat16 ones, in turns.

    decode   sampled tokens per second, few rows and many, behind the first token
    update   seconds of one update of `limits`, and its rate beside the best product of the same format
    parity   log-probs of what the engine sampled, computed again by the learner's forward (the skew), and by a policy
             with float32 products
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bench.decode import sampled
from bench.limits import counted, packs_of, peak
from bench.machine import machine
from treadle.algorithms.losses import PpoClip
from treadle.core import compute
from treadle.core.ports import CacheHint, Completion, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.models import CausalPlan, Policy
from treadle.recipes.recipe import MIXED_SKEW
from treadle.rendering.tokens import Tokens

LINE = "float32 products against bfloat16 ones: decoding, an update, and what the two differ by"
FORMATS = {"float32": None, "bfloat16": "bfloat16"}
ROWS = (8, 64)
"""Rollouts at once."""
PROMPTS = (
    "The capital of France is", "To list the files of a folder, use", "Once upon a time there was a",
    "def add(a, b):", "The three primary colours are", "Water boils at", "In the year 1969", "SELECT name FROM",
)
"""Texts whose continuations are judged: on random ids log-probs say little."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=4, help="groups of an update (default 4)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt (default 150)")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens of a rollout (default 64)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, of which the medians count (default 3)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record. Formats alternate."""
    policies = {name: Policy.load(args.model, compute_dtype=dtype) for name, dtype in FORMATS.items()}
    learners = {name: Learner(policy, LearnerConfig(lr=1e-9, max_skew=None)) for name, policy in policies.items()}
    full = policies["float32"]
    packs = packs_of(full, args, budget=LearnerConfig().tokens_per_pack)
    flops = counted(full, packs_of(full, args, budget=1 << 30))
    decode: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in ROWS} for name in FORMATS}
    update: dict[str, list[float]] = {name: [] for name in FORMATS}
    best: dict[str, list[float]] = {name: [] for name in FORMATS}
    for repeat in range(args.repeats + 1):  # the first makes copies and counts nowhere
        for name, policy in policies.items():
            rates = {rows: _decoded(policy, rows, args) for rows in ROWS}
            begun = time.perf_counter()
            learners[name].update(packs, PpoClip())
            seconds = time.perf_counter() - begun
            if repeat:
                best[name].append(peak(torch.bfloat16 if FORMATS[name] else torch.float32))
                update[name].append(seconds)
                for rows, rate in rates.items():
                    decode[name][rows].append(rate)
    spans = {name: statistics.median(times) for name, times in update.items()}
    return {
        "update_s": spans, "update_speedup": spans["float32"] / spans["bfloat16"],
        "update_gflops": {name: flops / seconds / 1e9 for name, seconds in spans.items()},
        "peak_gflops": {name: statistics.median(rates) / 1e9 for name, rates in best.items()},
        "decode_tokens_per_s": {
            name: {str(rows): statistics.median(found) for rows, found in by_rows.items()}
            for name, by_rows in decode.items()
        },
        "decode_speedup": {
            str(rows): statistics.median(decode["bfloat16"][rows]) / statistics.median(decode["float32"][rows])
            for rows in ROWS
        },
        "parity": {name: _parity(policy, full) for name, policy in policies.items()},
        "least_max_skew": MIXED_SKEW, "copied_bytes": {name: policy.copied_bytes for name, policy in policies.items()},
        "tokens": sum(batch.tokens for batch in packs), "repeats": args.repeats, **machine(),
    }


def _decoded(policy: Policy, rows: int, args: argparse.Namespace) -> float:
    """Tokens per second of `rows` rollouts of one prompt, behind the first token."""
    prompt = np.random.default_rng(0).integers(100, policy.dims.vocab, (1, args.prompt)).astype(np.int64)
    first, whole = (asyncio.run(sampled(policy, prompt, rows, tokens)) for tokens in (1, args.tokens))
    return float(rows * (args.tokens - 1) / (whole - first))


def _parity(policy: Policy, full: Policy) -> dict[str, float]:
    """Mean and largest distance in nats: of engine and learner, and of the engine and float32 products."""
    encode = Tokens.load(policy.folder).encode
    prompts = [np.asarray(encode(text), dtype=np.int32) for text in PROMPTS]

    async def continued() -> Sequence[Completion]:
        config = EngineConfig(slots=8 * len(prompts), context=512, kv_budget_tokens=64 * 1024)
        async with LocalEngine(policy, config) as engine:
            return await asyncio.gather(*(
                engine.generate(Request(
                    prompt=prompt, sampling=Sampling(max_tokens=24), stream=Stream(0).at(group, place),
                    cache=CacheHint(rollout=f"{group}.{place}", trunk=f"t{group}", trunk_len=len(prompt)),
                ))
                for group, prompt in enumerate(prompts) for place in range(8)
            ))

    skew, gap = [], []
    for number, done in enumerate(asyncio.run(continued())):
        prompt = prompts[number // 8]
        ids = np.concatenate([prompt, done.ids]).astype(np.int64)
        skew.append(np.abs(_scored(policy, ids, len(prompt), records=True) - done.logprobs))
        gap.append(np.abs(_scored(full, ids, len(prompt), records=False) - done.logprobs))
    ours, theirs = np.concatenate(skew), np.concatenate(gap)
    return {
        "skew_mean": float(ours.mean()), "skew_max": float(ours.max()), "from_float32_mean": float(theirs.mean()),
        "from_float32_max": float(theirs.max()),
    }


def _scored(policy: Policy, ids: NDArray[np.int64], after: int, *, records: bool) -> NDArray[np.float64]:
    """Log-probs of the tokens behind the first `after`, on the way that records gradients or not."""

    def work() -> NDArray[np.float64]:
        tokens = torch.from_numpy(ids)
        with torch.set_grad_enabled(records):
            hidden = policy.hidden(tokens, torch.arange(len(ids)), CausalPlan())[after - 1 : -1].detach()
            logp = policy.logits(hidden).double().log_softmax(-1)
        found: NDArray[np.float64] = logp.gather(1, tokens[after:, None])[:, 0].detach().numpy()
        return found

    return compute.run(work)

