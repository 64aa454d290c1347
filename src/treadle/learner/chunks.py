"""A pack that is longer than its budget, forward and backward in runs of tokens: exact, with the memory of one run.

Only a single path can be that long, since trees are split. Its tokens lie in order, so a run of them needs of the runs
before it nothing but keys and values:

    forth   every run but the last, without gradients: keys and values of each layer go on a shelf
    back    from the last run to the first: forward with gradients, the run's loss edges, backward. What its queries
            owe to earlier keys and values adds up on the shelf; what later runs owe to its own is there by then, and
            flows on into the run

That is the chain rule in another order, not an approximation. It costs one more forward, and memory for one run's
activations and, for the whole path, keys, values and their gradients: for a 135M model 1.5 MB per token of the run and
0.1 MB per token of the path. Where a memo has all states below the layers that train, both forwards begin there;
where it lacks some, they begin at the ids and leave the memo as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.learner.pack import PackedBatch
from treadle.learner.plan import RunPlan
from treadle.learner.spans import Shelf
from treadle.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongPass:
    """A pack whose forward takes `size` tokens at a time."""

    policy: Policy
    batch: PackedBatch
    device: torch.device
    size: int
    known: Tensor | None = None
    """[T, hidden] states that enter the layers that train, where a memo has all of them; else they are computed."""

    def backwards(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Runs, last first: states [n, hidden] with gradients, first token, loss edges long[e].

        The caller runs the backward of the states before it asks for the next, also where a run has no edges.
        """
        shelf, runs = Shelf(self.batch.tokens), self._runs()
        with torch.no_grad():
            for run in runs[:-1]:
                self._states(run, shelf)
        for run in runs[::-1]:
            yield self._states(run, shelf), run.start, self._edges(run)

    def forwards(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """The same runs, first first, without gradients."""
        shelf = Shelf(self.batch.tokens)
        for run in self._runs():
            with torch.no_grad():
                states = self._states(run, shelf)
            yield states, run.start, self._edges(run)

    def _runs(self) -> list[slice]:
        tokens = self.batch.tokens
        return [slice(a, min(a + self.size, tokens)) for a in range(0, tokens, self.size)]

    def _edges(self, run: slice) -> Tensor:
        """Loss edges that begin in a run."""
        within: Tensor = (self.batch.src >= run.start) & (self.batch.src < run.stop)
        return within.nonzero()[:, 0]

    def _states(self, run: slice, shelf: Shelf) -> Tensor:
        plan = RunPlan(self.batch, self.device, run, shelf)
        pos = self.batch.pos[run].to(self.device)
        if self.known is not None:
            return self.policy.hidden_above(self.known[run], pos, plan)
        return self.policy.hidden(self.batch.ids[run].to(self.device), pos, plan)
