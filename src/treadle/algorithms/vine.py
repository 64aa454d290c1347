"""VinePPO: what a state is worth is tried out, by rollouts that begin there and are not trained.

Those rollouts are probes (`Forest.probed`, made by a branching policy that probes). A turn earns what it was paid plus
the worth of the state after it minus that of the state before; the state after a last turn is worth 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.algorithms.demanded import lacks
from treadle.algorithms.turns import Turns
from treadle.trajectory.forest import Column, Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class Vine:
    """A_k = r_k + V(s_{k+1}) - V(s_k), V the mean return of probes (2410.01679).

    An action that rollouts share is followed by the mean over them.
    """

    name: ClassVar[str] = "vine"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 1

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment. Raises ValueError when a state that was acted in has no probe."""
        turns = Turns.of(forest)
        value = self._values(forest, turns)
        return NodeCredit(advantage=turns.rows(turns.reward + turns.onward(value) - value))

    def _values(self, forest: Forest, turns: Turns) -> Column:
        """[K] worth of the state that each action was taken in."""
        value = np.where(turns.origin >= 0, np.append(forest.probed, np.nan)[turns.origin], np.nan)
        if missing := int(np.isnan(value).sum()):
            raise lacks(
                self.name, got=f"{missing} of {len(turns)} actions in states that no probe began at",
                expected="a probe for each",
                todo="set branching=probe with branching.turns at least limits.max_turns - 1, and leave room for it in "
                "branching.tokens_per_group and snapshots.most; pipeline.filters=unprobed leaves out rollouts whose "
                "probes were lost",
            )
        return value
