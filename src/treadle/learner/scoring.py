"""Scoring: forwards without gradients over a forest, and numbers read from them per token.

A scan packs the forest, so that every shared context is computed once, and hands the states of each pack's edges to its
readers: the state that predicts a token, the state behind it, and the token. What a reader returns becomes a column
over the forest's tokens. Nothing is woven here: equal tokens of different segments each get their number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from treadle.algorithms.credit import Collapsed
from treadle.core import compute
from treadle.learner.chunks import LongPass
from treadle.learner.config import LearnerConfig
from treadle.learner.cost import Costs, costs_of
from treadle.learner.head import Head
from treadle.learner.pack import PackedBatch, looked_at, named, pack
from treadle.learner.plan import chosen
from treadle.learner.tree import Sharing, always
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest

Reader = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(states before [E, hidden], states behind [E, hidden], targets long[E]) to [E]."""


def packs_of(
    forest: Forest, *, budget_tokens: int, everywhere: bool, shares: Sharing = always
) -> list[PackedBatch]:
    """Packs with an edge for every token of actions, or of all segments."""
    if everywhere:
        forest = replace(forest, action=np.ones(len(forest), dtype=bool))
    ones = np.where(forest.action, 1.0, 0.0)
    credit = Collapsed(pos=ones, neg=0 * ones, mass=ones)
    return pack(forest, credit, denominator=1.0, budget_tokens=budget_tokens, shares=shares)


class Scorer:
    """Forwards of one policy over packs."""

    def __init__(self, policy: Policy, config: LearnerConfig) -> None:
        self.policy = policy
        self.config = config
        self.device: torch.device = next(policy.module.parameters()).device
        self.head = Head(policy, rows=config.head_rows, temperature=config.temperature)
        self.costs: Costs = costs_of(policy, config.top_layers)
        """Decides for `pack` which groups are trees."""
        self._plan = chosen(config.attention, self.device, policy.weight_dtype)

    def passes(
        self, batch: PackedBatch, *, size: int, grads: bool, behind: bool = False
    ) -> Iterator[tuple[Tensor, int, Tensor | slice]]:
        """States of runs of tokens [n, hidden], the first token of each, its edges: one run, unless that is too long.

        With `grads` each run's backward is due before the next is asked for. Without `behind` the state of a token that
        nothing comes after may be anything. In the compute thread.
        """
        if batch.tokens > size:
            memo = self.policy.memo
            known = None if memo is None else memo.take(named(batch, memo.names), looked_at(batch, behind=behind))
            long = LongPass(policy=self.policy, batch=batch, device=self.device, size=size, known=known)
            yield from long.backwards() if grads else long.forwards()
            return
        with torch.set_grad_enabled(grads):
            states = self.forward(batch, behind=behind)
        yield states, 0, slice(None)

    def states(self, batch: PackedBatch, *, size: int, behind: bool = False) -> Tensor:
        """Last hidden states [T, hidden] without gradients. In the compute thread."""
        found = [states for states, _, _ in self.passes(batch, size=size, grads=False, behind=behind)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def edges(self, batch: PackedBatch, first: int, edges: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Sources, counted from `first`, and target ids of some edges."""
        return batch.src[edges].to(self.device) - first, batch.ids[batch.tgt[edges]].to(self.device)

    def forward(self, batch: PackedBatch, *, behind: bool = False) -> Tensor:
        """Last hidden states [T, hidden] of a whole pack. In the compute thread."""
        plan = self._plan(batch, self.device)
        ids, pos, memo = batch.ids.to(self.device), batch.pos.to(self.device), self.policy.memo
        if memo is None:
            return self.policy.hidden(ids, pos, plan)
        names = named(batch, memo.names)
        states = memo.take(names, looked_at(batch, behind=behind))
        if states is None:
            return self.policy.hidden(ids, pos, plan, names)
        return self.policy.hidden_above(states, pos, plan)

    def scan(
        self, forest: Forest, readers: Mapping[str, Reader], *, budget_tokens: int, everywhere: bool = False
    ) -> dict[str, Column]:
        """A column [T] per reader: numbers on the tokens of actions, or of all segments; NaN on a context's first.

        A reader may look behind a token only where all segments are read.

        The caller sees to it that the weights do not change meanwhile.
        """
        out = {name: np.full(forest.tokens, np.nan) for name in readers}
        packs = packs_of(forest, budget_tokens=budget_tokens, everywhere=everywhere, shares=self.costs)
        for batch in packs:
            found = compute.run(functools.partial(self._read, batch, readers, budget_tokens, everywhere))
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

    def _read(
        self, batch: PackedBatch, readers: Mapping[str, Reader], size: int, behind: bool
    ) -> dict[str, Column]:
        with torch.no_grad():
            states = self.states(batch, size=size, behind=behind)
            src, tgt = batch.src.to(self.device), batch.tgt.to(self.device)
            here, after, targets = states[src], states[tgt], batch.ids.to(self.device)[tgt]
            return {name: read(here, after, targets).double().cpu().numpy() for name, read in readers.items()}
