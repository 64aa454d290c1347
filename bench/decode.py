"""Single-turn decoding beside `transformers.generate` and vLLM: the same model, prompts, lengths and minute.

Treadle and transformers share one thread of one process; vLLM's build for processors has a process and a virtual
environment of its own (`bench/decode_vllm.py`), installed with `--with-peers`. Formats are compared with their like:
float32 everywhere, and products in bfloat16 (mixed precision) beside vLLM in bfloat16.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import ExitStack

import numpy as np

from bench.closed_wire import ROOT, Side, SideEnded, environment, note
from bench.machine import machine
from bench.peer_home import python_of
from bench.peers_generate import Generate, Rows
from treadle.core.ports import CacheHint, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import Policy

LINE = "sampled tokens per second beside transformers.generate and vLLM, with prefill and in decode alone"
FORMATS = ("float32", "bfloat16")
VLLM_S = 900.0
"""The longest that vLLM may take to start, or to answer."""

Seconds = dict[str, list[float]]


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=8, help="groups that share a prompt (default 8)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt (default 150)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens (default 64)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, of which the medians count (default 3)")
    parser.add_argument("--with-peers", action="store_true", help="install vLLM into its own environment if it lacks")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record. Runs alternate, so that a slow minute of the machine meets all."""
    ours = {name: Policy.load(args.model, compute_dtype=None if name == "float32" else name) for name in FORMATS}
    folder = ours["float32"].folder
    peer = Generate(folder)
    seconds: dict[str, Seconds] = {
        who: {"prefill_s": [], "whole_s": []} for who in (*FORMATS, "generate", *(f"vllm {name}" for name in FORMATS))
    }
    python, missing = python_of("vllm", create=args.with_peers)
    with ExitStack() as stack:
        served: dict[str, Side] = {}
        try:
            if python is not None:
                served = {name: stack.enter_context(_served(str(python), str(folder), name, args)) for name in FORMATS}
        except SideEnded as ended:
            missing = str(ended)
        for repeat in range(args.repeats):
            prompts = made(args, ours["float32"].dims.vocab, seed=repeat)
            for key, tokens in (("prefill_s", 1), ("whole_s", args.tokens)):
                for name, policy in ours.items():
                    seconds[name][key].append(asyncio.run(sampled(policy, prompts, args.size, tokens)))
                seconds["generate"][key].append(peer.sample(np.repeat(prompts, args.size, axis=0), tokens)[1])
                try:
                    for name, side in served.items():
                        answer = side.ask("sample", prompts=prompts.tolist(), size=args.size, tokens=tokens)
                        seconds[f"vllm {name}"][key].append(float(answer["seconds"]))
                except SideEnded as ended:
                    served, missing = {}, str(ended)
    found = {who: figures(times, args) for who, times in seconds.items() if len(times["whole_s"]) == args.repeats}
    return {
        "ratio_generate": ratio(found["float32"], found["generate"]), "treadle": found["float32"],
        "treadle_mixed": found["bfloat16"], "transformers_generate": found["generate"],
        "vllm_cpu": f"missing: {missing}" if missing else {name: found[f"vllm {name}"] for name in FORMATS},
        **({} if missing else {"ratio_vllm": {
            "float32": ratio(found["float32"], found["vllm float32"]),
            "bfloat16": ratio(found["bfloat16"], found["vllm bfloat16"]),
        }}),
        "batch": args.groups * args.size, "groups": args.groups, "prompt_tokens": args.prompt,
        "new_tokens": args.tokens, "dtype": "float32", "repeats": args.repeats, **machine(),
    }


def ratio(us: dict[str, float], them: dict[str, float]) -> dict[str, float]:
    """How much faster we are."""
    return {
        "with_prefill": us["tokens_per_s"] / them["tokens_per_s"],
        "decode_only": us["decode_tokens_per_s"] / them["decode_tokens_per_s"],
    }


def _served(python: str, folder: str, dtype: str, args: argparse.Namespace) -> Side:
    """vLLM with the model loaded. Raises SideEnded."""
    note(f"vLLM in {dtype}")
    command = [python, "-m", "bench.decode_vllm"]
    side = Side(f"vLLM in {dtype}", command, limit_s=VLLM_S, environment=environment(PYTHONPATH=ROOT))
    with ExitStack() as stack:
        stack.enter_context(side)
        side.ask("load", folder=folder, dtype=dtype, rows=args.groups * args.size)
        stack.pop_all()
    return side


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
