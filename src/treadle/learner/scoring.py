"""Scoring: forwards without gradients over a forest, and numbers read from them per token.

A scan packs the forest, so that every shared context is computed once, and hands the states of each pack's edges to its
readers: the state that predicts a token, the state behind it, and the token. What a reader returns becomes a column
over the forest's tokens. Nothing is woven here: equal tokens of different segments each get their number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from treadle.algorithms.credit import Collapsed
from treadle.core import compute
from treadle.learner.config import LearnerConfig
from treadle.learner.head import Head
from treadle.learner.pack import PackedBatch, looked_at, named, pack
from treadle.learner.plan import PLANS
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest

Reader = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(states before [E, hidden], states behind [E, hidden], targets long[E]) to [E]."""


def packs_of(forest: Forest, *, budget_tokens: int, everywhere: bool) -> list[PackedBatch]:
    """Packs with an edge for every token of actions, or of all segments."""
    if everywhere:
        forest = replace(forest, action=np.ones(len(forest), dtype=bool))
    ones = np.where(forest.action, 1.0, 0.0)
    credit = Collapsed(pos=ones, neg=0 * ones, mass=ones)
    return pack(forest, credit, denominator=1.0, budget_tokens=budget_tokens)


class Scorer:
    """Forwards of one policy over packs."""

    def __init__(self, policy: Policy, config: LearnerConfig) -> None:
        self.policy = policy
        self.config = config
        self.device: torch.device = next(policy.module.parameters()).device
        self.head = Head(policy, rows=config.head_rows, temperature=config.temperature)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Last hidden states [T, hidden]. In the compute thread."""
        plan = PLANS[self.config.attention](batch, self.device)
        ids, pos, memo = batch.ids.to(self.device), batch.pos.to(self.device), self.policy.memo
        if memo is None:
            return self.policy.hidden(ids, pos, plan)
        sums = named(batch, memo.names)
        states = memo.take(sums, looked_at(batch))
        if states is None:
            return self.policy.hidden(ids, pos, plan, sums)
        return self.policy.hidden_above(states, pos, plan)

    def scan(
        self, forest: Forest, readers: Mapping[str, Reader], *, budget_tokens: int, everywhere: bool = False
    ) -> dict[str, Column]:
        """A column [T] per reader: numbers on the tokens of actions, or of all segments; NaN on a context's first.

        The caller sees to it that the weights do not change meanwhile.
        """
        out = {name: np.full(forest.tokens, np.nan) for name in readers}
        for batch in packs_of(forest, budget_tokens=budget_tokens, everywhere=everywhere):
            found = compute.run(functools.partial(self._read, batch, readers))
            at = forest.start[batch.row] + batch.offset
            for name, numbers in found.items():
                out[name][at] = numbers
        return out

    def logprobs(self, forest: Forest, *, budget_tokens: int) -> Column:
        """[T] log-probs of the tokens of actions."""
        return self.scan(forest, {"logp": self.read_logprobs}, budget_tokens=budget_tokens)["logp"]

    def read_logprobs(self, before: Tensor, behind: Tensor, targets: Tensor) -> Tensor:
        """Reader of log-probs."""
        return self.head.logprobs(before, targets)

    def read_entropies(self, before: Tensor, behind: Tensor, targets: Tensor) -> Tensor:
        """Reader of entropies, in nats."""
        return self.head.entropies(before)

    def _read(self, batch: PackedBatch, readers: Mapping[str, Reader]) -> dict[str, Column]:
        with torch.no_grad():
            states = self.forward(batch)
            src, tgt = batch.src.to(self.device), batch.tgt.to(self.device)
            before, behind, targets = states[src], states[tgt], batch.ids.to(self.device)[tgt]
            return {name: read(before, behind, targets).double().cpu().numpy() for name, read in readers.items()}
