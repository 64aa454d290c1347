"""The age meter: how far the policy has gone from what sampled the tokens, for each age of them.

The age of a token is the learner's version at the update minus the version that sampled it: 0 .. the staleness bound.
The first forward of an update computes the log-probs of its tokens anyway, so this costs no more than the sums:

    ratio r = new / behaviour, as in the loss; 1 where nothing has changed
    KL(behaviour || new), its estimate k3: mean of r - 1 - log r, in nats
    effective sample size (sum r)^2 / (n sum r^2): the share of the tokens that count, if they were reweighted by r

Edges that stand for several tokens count for each of them; their tokens have one recorded log-prob, so one ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from treadle.algorithms.losses import MOST_LOG_RATIO
from treadle.trajectory.forest import Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """What trained tokens of one age are like, before the step."""

    tokens: int
    ratio: float
    """Mean."""
    kl: float
    """Nats per token, k3."""
    ess: float
    """Share of the tokens, in (0, 1]."""


class AgeMeter:
    """Adds up one update of a learner at this version."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._sums: dict[int, NDArray[np.float64]] = {}
        """By age: tokens, and sums over them of r, r * r and r - 1 - log r."""

    def add(self, logp: Tensor, old: Tensor, *, versions: Index, copies: Index) -> None:
        """A pack: the learner's own and the recorded log-probs [E], who sampled each edge's token and for how many.

        Edges that nobody sampled (version -1) do not count.
        """
        sampled = versions >= 0
        change = (logp.detach() - old).double().cpu().numpy()[sampled].clip(-MOST_LOG_RATIO, MOST_LOG_RATIO)
        ratio, ages = np.exp(change), self._version - versions[sampled]
        each = np.stack([np.ones_like(ratio), ratio, ratio * ratio, ratio - 1 - change]) * copies[sampled]  # [4, e]
        for age in np.unique(ages):
            held = self._sums.setdefault(int(age), np.zeros(4))
            held += each[:, ages == age].sum(axis=1)

    def read(self) -> dict[int, Age]:
        """What was added, by age, the youngest first; empty when nothing was sampled."""
        return {
            age: Age(
                tokens=round(n), ratio=float(total / n), kl=float(kl / n), ess=float(total * total / (n * squares))
            )
            for age, (n, total, squares, kl) in sorted(self._sums.items())
        }
