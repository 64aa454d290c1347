"""A pack that is longer than its budget, forward and backward in runs of tokens: exact, with the memory of one run.

Only a single path can be that long, since trees are split. Its tokens lie in order, so a run of them needs of the runs
before it nothing but keys and values:

    forth   every run but the last, without gradients: keys and values of each layer go on a shelf
    back    from the last run to the first: forward with gradients, the run's loss edges, backward. What its queries
            owe to earlier keys and values adds up on the shelf; what later runs owe to its own is there by then, and
            flows on into the run

That is the chain rule in another order, not an approximation. It costs one more forward, and memory for one run's
activations and, for the whole path, keys, values and their gradients: for a 135M model 1.5 MB per token of the run and
0.1 MB per token of the path. The memo of frozen layers is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from treadle.learner.pack import PackedBatch
from treadle.learner.plan import RunPlan
from treadle.learner.spans import Shelf
from treadle.models.policy import Policy


def backwards(
    policy: Policy, batch: PackedBatch, device: torch.device, size: int
) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Runs of at most `size` tokens, last first: states [n, hidden] with gradients, first token, loss edges long[e].

    The caller runs the backward of the states before it asks for the next, also where a run has no edges.
    """
    shelf, runs = Shelf(batch.tokens), _runs(batch.tokens, size)
    with torch.no_grad():
        for run in runs[:-1]:
            _states(policy, batch, device, run, shelf)
    for run in runs[::-1]:
        yield _states(policy, batch, device, run, shelf), run.start, _edges(batch, run)


def forwards(
    policy: Policy, batch: PackedBatch, device: torch.device, size: int
) -> Iterator[tuple[Tensor, int, Tensor]]:
    """The same runs, first first, without gradients."""
    shelf = Shelf(batch.tokens)
    for run in _runs(batch.tokens, size):
        with torch.no_grad():
            states = _states(policy, batch, device, run, shelf)
        yield states, run.start, _edges(batch, run)


def _runs(tokens: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, tokens)) for a in range(0, tokens, size)]


def _edges(batch: PackedBatch, run: slice) -> Tensor:
    """Loss edges that begin in a run."""
    within: Tensor = (batch.src >= run.start) & (batch.src < run.stop)
    return within.nonzero()[:, 0]


def _states(policy: Policy, batch: PackedBatch, device: torch.device, run: slice, shelf: Shelf) -> Tensor:
    plan = RunPlan(batch, device, run, shelf)
    return policy.hidden(batch.ids[run].to(device), batch.pos[run].to(device), plan)
