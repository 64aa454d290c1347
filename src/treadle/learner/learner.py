"""The learner: packs in, one optimiser step out. Blind to algorithms, blocking, owned by one thread at a time.

An update walks its packs one after the other: forward over the packed tokens, head and loss on the loss edges,
backward. Gradients add up in the parameters; the denominator stands in the terms and is the same for all packs, so the
partition changes nothing (invariant 11). Then the gradient is clipped and AdamW steps. Where the process's memory runs
short between two packs, what is left is cut into packs of half the size, and so are all that follow.

The engine reads the same tensors all the while. They change in one place only: the step and the version bump, under
`policy.gate.write`. A gradient that is not finite is dropped, the weights stay as they are, and the report says so.
Callers run `update` in a thread of their own, which waits while the compute thread computes; between two packs
`between` is called, and what it raises ends the update unpaid.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from treadle.algorithms.loss import EdgeLoss as Loss
from treadle.core import compute
from treadle.core.clock import SystemClock
from treadle.core.memory import Memory
from treadle.core.ports import Clock, Floats, WeightRef
from treadle.learner import checkpoint
from treadle.learner.ages import Age, AgeMeter
from treadle.learner.annotate import Annotator, Answers
from treadle.learner.config import LearnerConfig
from treadle.learner.cut import cut
from treadle.learner.pack import PackedBatch
from treadle.learner.publisher import Publisher
from treadle.learner.reference import AdaptersOff, Reference
from treadle.learner.scoring import Scorer
from treadle.learner.skew import Skew, SkewMeter, require
from treadle.learner.value import ValueHead
from treadle.models.policy import Policy
from treadle.trajectory.forest import Forest

LEAST_PACK = 64
"""Tokens below which want of memory cuts packs no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one update did."""

    version: int
    """Policy version after it."""
    loss: float
    grad_norm: float
    """Before clipping."""
    lr: float
    tokens_trained: int
    """Action tokens that the loss edges stand for."""
    tokens_forward: int
    """Tokens that went through the model: equal ones in equal contexts once, replicated context included."""
    packs: int
    seconds: float
    skipped: str = ""
    """Why the weights did not change; empty when they did."""
    stats: dict[str, float] = field(default_factory=dict)
    """Means over loss edges, by name, as the loss reports them; those of the value head over edges with a return."""
    skew: Skew | None = None
    """How far recorded log-probs are from the learner's own; None unless the packs were fresh."""
    ages: Mapping[int, Age] = field(default_factory=dict)
    """What the trained tokens were like before the step, by their age in versions; empty where nobody sampled them."""


class Learner:
    """Trains a policy in place, or the top of it. Raises ConfigError for a schedule without a length.

    Which parameters record gradients is a state of the policy: the learner that was made last has the say.
    """

    def __init__(
        self, policy: Policy, config: LearnerConfig, *, clock: Clock | None = None,
        publisher: Publisher | None = None, memory: Memory | None = None,
    ) -> None:
        config.require_length()
        self.policy = policy
        self.config = config
        self.updates = 0
        """Updates done, skipped ones included: the clock of the schedule."""
        self.pack_tokens = config.tokens_per_pack
        """Most tokens of a pack from now on; want of memory lowers it."""
        self._memory = memory
        """The process's budget; None has none."""
        self._publisher = publisher
        """Writes weights for engines that copy them; None when the engine shares the tensors."""
        self._clock: Clock = clock or SystemClock()
        self._parameters = policy.train(
            config.top_layers, memo_tokens=config.memo_tokens, recomputes=config.recompute,
            lora_rank=config.lora_rank, lora_alpha=config.lora_alpha,
        )
        self._device: torch.device = self._parameters[0].device
        self.scorer = Scorer(policy, config)
        """Forwards over packs."""
        self._head = self.scorer.head
        self.costs = self.scorer.costs
        """Decides for `pack` which groups are trees."""
        self.value = None if config.value is None else ValueHead(
            policy.dims.hidden, config.value, device=self._device, dtype=self._head.dtype
        )
        """What a state is worth; None without `learner.value`."""
        self.reference: Reference | None = None
        """What `ref` is computed by; None takes the policy without adapters where it has some, and else none."""
        self.answers: Answers | None = None
        """Reference answers by task id; None where no rule needs them."""
        self.optimiser = _adamw(self._parameters, config)

    def update(
        self, packs: Sequence[PackedBatch], loss: Loss, *, fresh: bool = False,
        between: Callable[[int, int], None] | None = None,
    ) -> UpdateReport:
        """One optimiser step over all packs. `between(done, packs)` is called after every pack.

        `fresh` says that the policy's version of now sampled every token that has a recorded log-prob: then the skew
        is measured. Raises ValueError when the loss needs behaviour log-probs that a pack lacks, WeightMismatch, with
        nothing changed, when the skew is over its bound, DeadlineExceeded when the engine does not let go of the
        weights.
        """
        started = self._clock.now()
        _check(packs, loss)
        total, sums, meter, ages = 0.0, dict[str, float](), SkewMeter(), AgeMeter(self.policy.version)
        try:
            left, done = deque(packs), list[PackedBatch]()
            while left:
                done.append(self._next(left))
                value, part = self.accumulate(done[-1], loss, meter if fresh else None, ages)
                total += value
                for key, number in part.items():
                    sums[key] = sums.get(key, 0.0) + number
                if between is not None:
                    between(len(done), len(done) + len(left))
            skew = meter.read()
            if skew is not None and self.config.max_skew is not None:
                require(skew, bound=self.config.max_skew, version=self.policy.version)
            edges = sum(batch.edges for batch in packs)
            lr = self.config.rate(self.updates)
            norm, skipped = self._step(lr, "" if edges else "nothing to train")
            valued = {} if self.value is None else self.value.read()
        finally:
            self._drop_gradients()
        self.updates += 1
        return UpdateReport(
            version=self.policy.version, loss=total, grad_norm=norm, lr=lr,
            tokens_trained=sum(batch.trained for batch in packs),
            tokens_forward=sum(batch.tokens for batch in done), packs=len(done), skipped=skipped,
            skew=skew, ages=ages.read(), seconds=self._clock.now() - started,
            stats={key: number / max(edges, 1) for key, number in sums.items()} | valued,
        )

    def accumulate(
        self, batch: PackedBatch, loss: Loss, meter: SkewMeter | None = None, ages: AgeMeter | None = None
    ) -> tuple[float, dict[str, float]]:
        """Forward and backward of one pack into the parameters' gradients: its loss, and the loss's report."""
        if batch.edges == 0:
            return 0.0, {}
        return compute.run(lambda: self._accumulate(batch, loss, meter, ages))

    def logprobs(self, forest: Forest) -> dict[str, Floats]:
        """log p of every action token under the weights of now, by segment id, float32[n].

        The caller sees to it that the weights do not change meanwhile. NaN for a root's first token.
        """
        column = self.scorer.logprobs(forest, budget_tokens=self.pack_tokens).astype(np.float32)
        return {
            s.id: column[forest.start[row] : forest.start[row + 1]]
            for row, s in enumerate(forest.segments) if s.is_action
        }

    def annotate(self, forest: Forest, columns: Collection[str]) -> Forest:
        """The forest with these notes, see `annotate`: under the weights of now, without gradients.

        The caller sees to it that the weights do not change meanwhile. Raises ConfigError for a column that nobody can
        compute: an unknown one, `value` without `learner.value`, `ref` without a reference, `answer_prob` for a task
        without an answer.
        """
        if not columns:
            return forest
        made = Annotator(
            scorer=self.scorer, value=self.value, reference=self._reference(), answers=self.answers
        )
        return made.annotate(forest, columns, budget_tokens=self.pack_tokens)

    def publish(self) -> WeightRef:
        """Where the weights of now are: in the tensors that the engine shares, or written for engines that copy.

        Blocking when they are written. Raises StoreError when the disk refuses.
        """
        if self._publisher is not None:
            return self._publisher.publish(self.policy)
        return WeightRef(version=self.policy.version)

    def save(self, folder: str | Path, *, beside: Mapping[str, str] | None = None) -> None:
        """Write weights, optimiser and counters; `folder` is there whole or not at all. The caller does not update.

        `beside` are files of the caller's own, by name, that appear with it.
        """
        checkpoint.save(
            Path(folder), self.policy, self.optimiser, updates=self.updates, beside=beside or {}, value=self.value
        )

    def restore(self, folder: str | Path) -> None:
        """Continue from what `save` wrote. Raises StoreError when it does not fit this policy."""
        self.updates = checkpoint.restore(
            Path(folder), self.policy, self.optimiser, timeout_s=self.config.gate_timeout_s, value=self.value
        )

    def _next(self, left: deque[PackedBatch]) -> PackedBatch:
        """The next pack, no larger than memory allows; the rest of it stays in `left`."""
        memory = self._memory
        if memory is not None and memory.excess():
            memory.call_helpers()
            if self.pack_tokens > LEAST_PACK:
                self.pack_tokens = max(self.pack_tokens // 2, LEAST_PACK)
                memory.acted("learner", tokens_per_pack=self.pack_tokens)
        if self.pack_tokens < self.config.tokens_per_pack:
            left.extendleft(reversed(cut(left.popleft(), self.pack_tokens)))
        return left.popleft()

    def _accumulate(
        self, batch: PackedBatch, loss: Loss, meter: SkewMeter | None, ages: AgeMeter | None
    ) -> tuple[float, dict[str, float]]:
        terms = batch.terms.to(self._device, self._head.dtype)
        logp = terms.old.new_empty(batch.edges)
        value = 0.0
        for states, first, edges in self.scorer.passes(batch, size=self.pack_tokens, grads=True):
            src, targets = self.scorer.edges(batch, first, edges)
            here, at = terms.at(edges), states.detach()[src]
            loss_here, grad, logp[edges] = self._head.backward(at, targets, here, loss)
            if self.value is not None and here.ret is not None:
                more = self.value.backward(at, here)
                grad = grad if more is None else grad + more.to(grad.dtype)
            states.backward(torch.zeros_like(states).index_add_(0, src, grad))  # type: ignore[no-untyped-call]
            value += float(loss_here)
        if meter is not None:
            meter.add(logp, terms.old)
        if ages is not None:
            ages.add(logp, terms.old, versions=batch.version, copies=batch.copies)
        return value, loss.report(logp, terms)

    def _step(self, lr: float, skipped: str) -> tuple[float, str]:
        """Clip, then step and bump the version under the gate: gradient norm, and why nothing was done."""
        if skipped:
            return 0.0, skipped
        bound = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        norm = compute.run(lambda: float(torch.nn.utils.clip_grad_norm_(self._parameters, bound)))
        if not math.isfinite(norm):
            return norm, f"gradient norm is {norm}"
        if self.value is not None and not math.isfinite(found := compute.run(self.value.norm)):
            return found, f"gradient norm of the value head is {found}"
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        with self.policy.gate.write("learner.step", timeout_s=self.config.gate_timeout_s):
            compute.run(self._move)
            self.policy.version += 1
        return norm, ""

    def _move(self) -> None:
        self.optimiser.step()
        if self.value is not None:
            self.value.step(self.config.share(self.updates))

    def _reference(self) -> Reference | None:
        if self.reference is None and self.policy.adapters is not None:
            self.reference = AdaptersOff(self.policy, self.config)
        return self.reference

    def _drop_gradients(self) -> None:
        def zero() -> None:
            if self.value is not None:
                self.value.drop_gradients()
                self.value.read()
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.zero_()

        compute.run(zero)


def _adamw(parameters: Sequence[nn.Parameter], config: LearnerConfig) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def _check(packs: Sequence[PackedBatch], loss: Loss) -> None:
    if "old" in loss.needs and any(bool(batch.terms.old.isnan().any()) for batch in packs):
        raise ValueError(f"loss {loss.name} needs behaviour log-probs; got tokens that no policy sampled (use nll)")
