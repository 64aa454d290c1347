"""How near an update comes to what the machine can do: its arithmetic against the best matrix product of the same run.

The arithmetic is counted from the model and the batch, never from what the learner happens to do:

    6 x body parameters x unique tokens  +  6 x head parameters x loss edges  +  attention

Two for the forward and four for the backward of every weight and token. Attention is 12 x layers x heads x head size
for every pair of a token and one that it sees.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from bench.machine import machine
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import PpoClip
from treadle.core import compute
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models import Policy
from treadle.models.linear import multiply
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

LINE = "an update's arithmetic as a share of the machine's best matrix product"
SHAPES = ((1024, 576, 1536), (2048, 576, 1536), (1024, 1024, 1024), (2048, 2048, 2048), (512, 576, 49152))
"""Products that are tried for the peak: rows, depth, columns."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=4, help="groups (default 4)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of a prompt (default 150)")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens of a rollout (default 64)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of peak and update (default 3)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record. Peak and update alternate."""
    policy = Policy.load(args.model)
    learner = Learner(policy, LearnerConfig(lr=1e-9, max_skew=None))
    packs = packs_of(policy, args, budget=learner.config.tokens_per_pack)
    flops = counted(policy, packs_of(policy, args, budget=1 << 30))  # one pack of all: nothing stands in it twice
    learner.update(packs, PpoClip())
    peaks, seconds = [], []
    for _ in range(args.repeats):
        peaks.append(peak())
        begun = time.perf_counter()
        learner.update(packs, PpoClip())
        seconds.append(time.perf_counter() - begun)
    rates = [flops / s for s in seconds]
    return {
        "update_share_of_peak": statistics.median(r / p for r, p in zip(rates, peaks, strict=True)),
        "update_gflops": statistics.median(rates) / 1e9, "peak_gflops": statistics.median(peaks) / 1e9,
        "update_s": statistics.median(seconds), "tokens": sum(b.tokens for b in packs),
        "edges": sum(b.edges for b in packs), "packs": len(packs), "tflop": flops / 1e12, "repeats": args.repeats,
        **machine(),
    }


def peak(dtype: torch.dtype = torch.float32) -> float:
    """The best rate of products, by either library that PyTorch carries, in operations per second."""

    def tried(rows: int, depth: int, columns: int) -> float:
        left, right = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
        best = float("inf")
        for _ in range(5):
            for product in (torch.nn.functional.linear, multiply):
                begun = time.perf_counter()
                product(left, right)
                best = min(best, time.perf_counter() - begun)
        return 2 * rows * depth * columns / best

    return compute.run(lambda: max(tried(*shape) for shape in SHAPES))


def counted(policy: Policy, packs: list[PackedBatch]) -> float:
    """Operations of one update on these packs."""
    head = policy.dims.vocab * policy.dims.hidden
    embedded = policy.module.get_input_embeddings().weight.numel()
    tied = policy.module.get_output_embeddings().weight is policy.module.get_input_embeddings().weight
    body = sum(p.numel() for p in policy.module.parameters()) - embedded - (0 if tied else head)
    seen = sum(_pairs(batch) for batch in packs)
    tokens, edges = sum(b.tokens for b in packs), sum(b.edges for b in packs)
    attention = 12 * policy.dims.layers * policy.dims.heads * policy.dims.head_dim * seen
    return float(6 * body * tokens + 6 * head * edges + attention)


def _pairs(batch: PackedBatch) -> int:
    """Pairs of a token and one that it sees: a token at position p sees p + 1."""
    return int((batch.pos + 1).sum())


def packs_of(policy: Policy, args: argparse.Namespace, *, budget: int) -> list[PackedBatch]:
    """Groups of one turn whose rollouts differ from the first token on."""
    random = np.random.default_rng(0)
    groups = []
    for number in range(args.groups):
        key = GroupKey(
            id=f"g{number}", ticket=number, task=f"t{number}", family="", split="train", admitted_version=0
        )
        group = Group(key)
        prompt = group.prompt(random.integers(100, policy.dims.vocab, args.prompt).astype(np.int32))
        for index in range(args.size):
            rollout = group.begin(index)
            noise = random.normal(-2, 0.1, args.tokens).astype(np.float32)
            group.sampled(rollout.id, Completion(
                ids=random.integers(100, policy.dims.vocab, args.tokens).astype(np.int32), logprobs=noise,
                entropy=-noise, versions=((0, args.tokens),), kv_version=0, finish=Finish.STOP,
            ), after=prompt, turn=0)
            group.pay(rollout.id, "correct", float(index % 2))
            group.end(rollout.id, OK)
        groups.append(group)
    forest = Forest.of(groups)
    collapsed, denominator = assign(forest, Grpo(), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=budget, tolerance=1e-4)
