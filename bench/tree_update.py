"""What a shared prefix saves an update: one group packed as a tree against the same group as a padded flat batch.

Both sides run in one process, in turns, on the same policy, with the same output head on the same loss edges, the same
products and the same attention kernel. The flat side is one path per row; all rows are equally long, so that nothing of
it is padding. Its rows are taken at most `--flat-tokens` at once, and see themselves by the learner's own calls or,
with `--flat-attention rows`, by one causal call of PyTorch for `[rows, tokens]`, as other trainers do it. `speedup` is
the median of flat over tree, pair by pair, of forward and backward; the optimiser's step, which is the same for both,
is told apart. `limit` is the ratio of counted operations.

Recorded log-probs are the policy's own, so that every token has a gradient. Gradients of the first pair are compared,
and once more in float64 on a small model.

Memory is measured in a fresh process per side: after a small warm-up, with weights, gradients and moments in place and
the heap trimmed, the peak of resident memory is reset (`/proc/self/clear_refs`), one forward and backward runs, and
what the peak is above the memory before counts. `memory_ratio` adds the gradients to both sides, which both need.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.limits import counted
from bench.machine import machine
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import PpoClip
from treadle.core import compute
from treadle.core.memory import resident_bytes, trim_heap
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish, Floats
from treadle.learner.config import LearnerConfig
from treadle.learner.cut import cut
from treadle.learner.head import Head
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.learner.tree import always, never
from treadle.models import Policy, build_tiny
from treadle.testing.exact import in_float64
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

LINE = "one group as a tree against a padded flat batch: time, memory, equal gradients"
SHAPES = {"p512_c128_n8": (512, 128, 8), "p1024_c64_n8": (1024, 64, 8), "p128_c512_n8": (128, 512, 8)}
"""Tokens of the prefix, of a completion, rollouts."""
SMALL = (96, 24, 8)
"""The shape in float64."""
TINY = (16, 4, 2)
"""The shape of warm-ups."""
MEASURED = "p512_c128_n8"
"""The shape whose memory counts."""
WHOLE = 1 << 20
"""A budget that splits nothing."""
LOSS = PpoClip()
Packs = tuple[list[PackedBatch], list[PackedBatch]]
"""The same group as a tree, and flat."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="shapes by comma (default all)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of tree and flat for each shape (default 3)")
    parser.add_argument("--flat-tokens", type=int, default=2560, help="tokens of a flat batch at once (default 2560)")
    parser.add_argument(
        "--flat-attention", choices=("node", "rows"), default="node",
        help="attention of the flat side: the learner's own calls, row by row, or one causal call for all rows",
    )
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--side", choices=("tree", "flat"), help="only measure the memory of one side, in this process")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    if args.side:
        return memory_of(args)
    begun = time.perf_counter()
    record: dict[str, object] = {"grad_rel_error_fp64": exactness()}
    names = args.shapes.split(",")
    policy = Policy.load(args.model)
    learner = Learner(policy, _config())
    for side in sides(learner, packs(learner, TINY, flat_tokens=WHOLE), TINY):
        side()
    shapes = {name: measured(learner, SHAPES[name], args) for name in names}
    if MEASURED in names and not args.no_memory:
        shapes[MEASURED].update(memory(args))
    return {
        **shapes, **record, "grad_rel_error_fp32": max(shape["grad_rel_error"] for shape in shapes.values()),
        "optimiser_step_s": _step(learner), "pairs": args.pairs, "flat_attention": args.flat_attention,
        "flat_tokens": args.flat_tokens,
        "seconds": time.perf_counter() - begun, **machine(),
    }


def measured(learner: Learner, shape: tuple[int, int, int], args: argparse.Namespace) -> dict[str, float]:
    """One shape, tree and flat in turns."""
    both = (packed,), flats = packs(learner, shape, flat_tokens=args.flat_tokens)
    tree, flat = sides(learner, both, shape, attention=args.flat_attention)
    error = 0.0
    seconds: list[tuple[float, float]] = []
    for number in range(args.pairs):
        first = _timed(learner, tree)
        held = _gradients(learner) if number == 0 else []
        second = _timed(learner, flat)
        if number == 0:
            error = _relative(held, _gradients(learner))
        seconds.append((first, second))
    return {
        "speedup": statistics.median(b / a for a, b in seconds), "tree_s": statistics.median(a for a, _ in seconds),
        "flat_s": statistics.median(b for _, b in seconds),
        "limit": counted(learner.policy, flats) / counted(learner.policy, [packed]),
        "tree_tokens": packed.tokens, "flat_tokens": sum(batch.tokens for batch in flats), "edges": packed.edges,
        "tree_gflops": counted(learner.policy, [packed]) / statistics.median(a for a, _ in seconds) / 1e9,
        "flat_gflops": counted(learner.policy, flats) / statistics.median(b for _, b in seconds) / 1e9,
        "grad_rel_error": error,
    }


def sides(
    learner: Learner, packed: Packs, shape: tuple[int, int, int], *, attention: str = "node"
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of a group, as a tree by the learner and flat."""
    trees, flats = packed
    head = Head(learner.policy, rows=learner.config.head_rows, temperature=1.0)
    length = shape[0] + shape[1]

    def tree() -> None:
        for batch in trees:
            learner.accumulate(batch, LOSS)

    def flat() -> None:
        for batch in flats:
            if attention == "node":
                learner.accumulate(batch, LOSS)
            else:
                compute.run(partial(padded, learner.policy, head, batch, batch.tokens // length))

    return tree, flat


class Rows:
    """Attention of a padded batch: one causal call for all rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        q, k, v = (
            x[0].reshape(x.shape[1], self._rows, -1, x.shape[3]).transpose(0, 1) for x in (q, k, v)
        )  # [rows, H, length, D]
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).flatten(0, 1)[None]


def padded(policy: Policy, head: Head, batch: PackedBatch, rows: int) -> None:
    """Forward and backward of a flat batch into the parameters' gradients, as the learner does it."""
    states = policy.hidden(batch.ids, batch.pos, Rows(rows))
    terms = batch.terms.to(states.device, head.dtype)
    _, grad, _ = head.backward(states.detach()[batch.src], batch.ids[batch.tgt], terms, LOSS)
    states.backward(torch.zeros_like(states).index_add_(0, batch.src, grad))  # type: ignore[no-untyped-call]


def packs(learner: Learner, shape: tuple[int, int, int], *, flat_tokens: int) -> Packs:
    """The same group, the same credit: as a tree, and one path per row in batches of so many tokens."""
    blank = group(learner.policy.dims.vocab, shape, None)
    forest = group(learner.policy.dims.vocab, shape, learner.logprobs(blank))
    collapsed, denominator = assign(forest, Grpo(), TokenMean())
    tree, (flat,) = (
        pack(forest, collapsed, denominator=denominator, budget_tokens=WHOLE, shares=shares)
        for shares in (always, never)
    )
    return tree, cut(flat, flat_tokens)


def group(vocab: int, shape: tuple[int, int, int], recorded: dict[str, Floats] | None) -> Forest:
    """One group of one turn whose rollouts differ from the first token on; every other one is right."""
    prefix, length, size = shape
    random = np.random.default_rng(0)
    key = GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0)
    made = Group(key)
    prompt = made.prompt(random.integers(3, vocab, prefix).astype(np.int32))
    for index in range(size):
        rollout = made.begin(index)
        known = np.zeros(length, dtype=np.float32) if recorded is None else list(recorded.values())[index]
        made.sampled(rollout.id, Completion(
            ids=random.integers(3, vocab, length).astype(np.int32), logprobs=known, entropy=np.ones_like(known),
            versions=((0, length),), kv_version=0, finish=Finish.STOP,
        ), after=prompt, turn=0)
        made.pay(rollout.id, "correct", float(index % 2))
        made.end(rollout.id, OK)
    return Forest.of([made])


def exactness() -> float:
    """Relative difference of the two gradients in float64, on a small model."""
    with tempfile.TemporaryDirectory() as folder:
        policy = in_float64(Policy.load(build_tiny(Path(folder) / "tiny", hidden=64, layers=4)))
        learner = Learner(policy, _config())
        found = []
        for side in sides(learner, packs(learner, SMALL, flat_tokens=WHOLE), SMALL):
            policy.module.zero_grad()
            side()
            found.append(_gradients(learner))
    return _relative(*found)


def memory(args: argparse.Namespace) -> dict[str, float]:
    """Both sides' peaks, each from a process of its own."""
    sizes = {}
    for side in ("tree", "flat"):
        told = subprocess.run(
            [sys.executable, "-m", "bench", "tree_update", "--json", "--side", side, "--model", args.model],
            capture_output=True, text=True, check=True,
        )
        sizes[side] = json.loads(told.stdout.strip().splitlines()[-1])
    gradients = sizes["tree"]["gradients_gb"]
    return {
        "tree_peak_gb": sizes["tree"]["peak_gb"], "flat_peak_gb": sizes["flat"]["peak_gb"], "gradients_gb": gradients,
        "memory_ratio": (sizes["tree"]["peak_gb"] + gradients) / (sizes["flat"]["peak_gb"] + gradients),
    }


def memory_of(args: argparse.Namespace) -> dict[str, object]:
    """Peak of resident memory above what is there before, of one forward and backward of one side, in this process."""
    learner = Learner(Policy.load(args.model), _config())
    number = ("tree", "flat").index(args.side)
    warm, work = (
        sides(learner, packs(learner, shape, flat_tokens=WHOLE), shape)[number] for shape in (TINY, SHAPES[MEASURED])
    )
    warm()
    compute.run(learner.optimiser.step)
    trim_heap()
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    work()
    gradients = sum(p.grad.nbytes for p in learner.policy.module.parameters() if p.grad is not None)
    return {
        "side": args.side, "peak_gb": (_peak() - before) / 1e9, "before_gb": before / 1e9,
        "gradients_gb": gradients / 1e9,
    }


def _peak() -> int:
    """Bytes of the highest resident memory since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _config() -> LearnerConfig:
    return LearnerConfig(lr=1e-9, max_skew=None, tokens_per_pack=WHOLE)


def _timed(learner: Learner, work: Callable[[], object]) -> float:
    learner.policy.module.zero_grad(set_to_none=False)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _step(learner: Learner) -> float:
    """Seconds of the optimiser's step, the first one aside, which makes the moments."""
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        compute.run(learner.optimiser.step)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def _gradients(learner: Learner) -> list[Tensor]:
    return [p.grad.clone() for p in learner.policy.module.parameters() if p.grad is not None]


def _relative(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm."""
    apart = sum(float((a - b).double().square().sum()) for a, b in zip(ours, theirs, strict=True))
    return math.sqrt(apart / sum(float(b.double().square().sum()) for b in theirs))
