"""GiGPO: the rollout's advantage plus that of the step among all steps taken in the same state.

Rollouts come through the same state without having been forked there: whoever acted in it tried alternatives of each
other. The state is the environment's word (`Step.state_key`), compared within a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest, center


@dataclass(frozen=True, slots=True, kw_only=True)
class GiGpo:
    """A^E + omega A^S (2505.10978).

    A^E is the return minus the group's mean; A^S is the discounted reward from a step on minus the mean over the steps
    of the task taken in the same state, 0 for a step alone there. A step that rollouts share is one step: its A^E is
    the mean over them, its reward from there on the mean over the forks.
    """

    name: ClassVar[str] = "gigpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "batch"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    omega: float = 1.0
    """How much the step counts beside the rollout."""
    gamma: float = 0.95
    """Discount per action."""
    std: bool = False
    """Divide both by their sample standard deviation + eps."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        if not self.omega >= 0 or not np.isfinite(self.omega):
            raise ConfigError(f"gigpo.omega: got {self.omega}, expected >= 0")
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gigpo.gamma: got {self.gamma}, expected 0 < gamma <= 1")
        if not self.eps > 0:
            raise ConfigError(f"gigpo.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment. Raises ValueError when a sampled action after the first has no state key."""
        turns = Turns.of(forest)
        states = turns.states(self.name)
        rollout = center(forest.returns, forest.rollout_group, std=self.std, eps=self.eps)
        step = center(turns.togo(turns.reward, self.gamma), states, std=self.std, eps=self.eps)
        return NodeCredit(advantage=turns.rows(forest.leaf_mean(rollout)[turns.row] + self.omega * step))
