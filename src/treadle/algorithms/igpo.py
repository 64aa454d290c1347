"""IGPO: a turn is worth what it adds to the probability of the answer.

The learner says how likely the reference answer is after everything up to a segment (note `answer_prob`). A turn that
is followed by another one earns the difference between before it and after the world's answer to it, and whatever the
world paid for it; the last turn earns what the world paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.algorithms.demanded import lacks, noted
from treadle.algorithms.moments import standardised
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class IgPo:
    """Information gain per turn, standardised over all turns of the group, then summed over what follows (2510.14967).

    z = (r - mean) / (population standard deviation + eps) counts a turn once for each rollout through it. Where the
    tree forks, what follows is the mean over the branches.
    """

    name: ClassVar[str] = "igpo"
    needs: ClassVar[frozenset[str]] = frozenset({"answer_prob"})
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    gamma: float = 1.0
    """Discount per action."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"igpo.gamma: got {self.gamma}, expected 0 < gamma <= 1")
        if not self.eps > 0:
            raise ConfigError(f"igpo.eps: got {self.eps}, expected > 0")

    def gains(self, forest: Forest) -> Column:
        """[K] what each action earns. Raises ValueError when the answer's probability before one is missing."""
        turns = Turns.of(forest)
        if (first := turns.origin < 0).any():
            raise lacks(
                self.name, got=f"{int(first.sum())} actions that nothing comes before", expected="a prompt before each",
                todo="begin groups with a prompt",
            )
        before = np.exp(noted(forest, "answer_prob", rule=self.name, at=forest.start[turns.origin + 1] - 1))
        share = turns.continuing / turns.rollouts
        gain = np.where(share > 0, turns.onward(before) / np.where(share > 0, share, 1.0) - before, 0.0)
        return np.asarray(turns.reward + gain, dtype=np.float64)

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment. Raises ValueError when the answer's probability before an action is missing."""
        turns = Turns.of(forest)
        z = standardised(self.gains(forest), turns.group, turns.rollouts, ddof=0, eps=self.eps)
        return NodeCredit(advantage=turns.rows(turns.togo(z, self.gamma)))
