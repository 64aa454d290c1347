"""MT-GRPO: what a turn was paid for counts for that turn, the outcome for all.

The outcome of a rollout is what was paid for its last action; what was paid for an earlier one is a turn reward. Turn
rewards are compared among the rollouts of the group that were in the same turn and went on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.algorithms.demanded import lacks
from treadle.algorithms.moments import standardised
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest, center


@dataclass(frozen=True, slots=True, kw_only=True)
class MtGrpo:
    """z(outcome) + turn * z(turn reward), z = (x - mean) / (sample standard deviation + eps) (2505.11821).

    The last action of a rollout has the outcome alone. An action that rollouts share has the mean over them.
    """

    name: ClassVar[str] = "mt_grpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    turn: float = 1.0
    """How much a turn reward counts beside the outcome."""
    eps: float = 1e-4
    """Added to the standard deviation, in units of reward."""
    allow_unpaid: bool = False
    """True takes an update in which no turn before a last one was paid: for worlds that pay turns seldom."""

    def __post_init__(self) -> None:
        if not np.isfinite(self.turn):
            raise ConfigError(f"mt_grpo.turn: got {self.turn}, expected a finite number")
        if not self.eps > 0:
            raise ConfigError(f"mt_grpo.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment. Raises ValueError when no turn was paid and `allow_unpaid` is false."""
        turns = Turns.of(forest)
        reward, going_on = turns.reward, turns.continuing
        if not self.allow_unpaid and going_on.any() and not reward[going_on > 0].any():
            raise lacks(
                self.name, got=f"no reward on any of {int((going_on > 0).sum())} actions before a last one",
                expected="turn rewards",
                todo="let the environment's step return a reward, or set algorithm.rule.allow_unpaid=true if it pays "
                "turns seldom",
            )
        last = turns.last
        outcome = np.where(last >= 0, np.append(reward, 0.0)[last], 0.0)
        whole = forest.leaf_mean(center(outcome, forest.rollout_group, std=True, eps=self.eps))[turns.row]
        same_turn = turns.group * (int(turns.ordinal.max(initial=0)) + 1) + turns.ordinal
        apart = standardised(reward, same_turn, going_on, ddof=1, eps=self.eps)
        return NodeCredit(advantage=turns.rows(whole + self.turn * apart * going_on / turns.rollouts))
