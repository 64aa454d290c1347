"""Imitation: weight 1 on what a demonstrator wrote, 0 on everything else. Its loss is `nll`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.trajectory.forest import Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """Advantage 1 on demonstrated actions, each trained once; takes groups of one."""

    name: ClassVar[str] = "imitation"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "weighed segment"
    min_rollouts: ClassVar[int] = 1

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        demonstrated = np.asarray(forest.action & ~forest.policy, dtype=np.float64)
        return NodeCredit(advantage=demonstrated, weight=demonstrated)
