"""Graph credit: rollouts that come through equal states are one graph, and an action is worth the way it saves.

Nodes are states (`Step.state_key`, merged within a task), edges are actions that somebody took, and a rollout whose
return says that it succeeded leads to the goal. The distance of a state is the fewest actions, by any rollout, from it
to the goal: a rollout that failed at the end still learns which of its steps came closer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest, Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Distance before an action minus distance after it (2605.26684 has the idea).

    What leads to no success is one action farther than the farthest state of its task that does, and so is the end of
    a rollout that failed. A task without any success has no distances: 0 throughout, as a group of equals has.
    """

    name: ClassVar[str] = "graph"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "batch"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    success: float = 1.0
    """Least return of a rollout that succeeded."""

    def __post_init__(self) -> None:
        if not np.isfinite(self.success):
            raise ConfigError(f"graph.success: got {self.success}, expected a finite number")

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment. Raises ValueError when a sampled action after the first has no state key."""
        turns = Turns.of(forest)
        states = turns.states(self.name)
        distance, far = self._distances(forest, turns, states)
        last = turns.last
        acted = last >= 0
        lost = np.where(self._succeeded(forest), 0.0, far[forest.rollout_group])
        ended = np.bincount(last[acted], weights=lost[acted], minlength=len(turns))
        after = turns.onward(distance) + ended / turns.rollouts
        return NodeCredit(advantage=turns.rows(distance - after))

    def _succeeded(self, forest: Forest) -> Column:
        return np.asarray(forest.returns >= self.success - 1e-9)

    def _distances(self, forest: Forest, turns: Turns, states: Index) -> tuple[Column, Column]:
        """[K] distance of the state that each action was taken in, and [G] that of what leads to no success."""
        won = turns.last[self._succeeded(forest)]
        steps = _steps_to_goal(turns, states, goal=won[won >= 0])
        known = np.array([steps.get(state, -1) for state in states.tolist()], dtype=np.float64)
        tasks: dict[str, int] = {}
        task = np.array([tasks.setdefault(key.task, len(tasks)) for key in forest.keys], dtype=np.int64)
        farthest = np.full(len(tasks), -1.0)
        np.maximum.at(farthest, task[turns.group], known)
        far = np.where(farthest >= 0, farthest + 1.0, 0.0)[task]
        return np.where(known >= 0, known, far[turns.group]), far


def _steps_to_goal(turns: Turns, states: Index, *, goal: Index) -> dict[int, int]:
    """State to the fewest actions from it to the goal, for those that lead there; `goal` are actions that reach it."""
    into: dict[int, set[int]] = {}
    for action in np.flatnonzero(turns.before >= 0).tolist():
        into.setdefault(int(states[action]), set()).add(int(states[turns.before[action]]))
    steps = {int(states[action]): 1 for action in goal.tolist()}
    queue = deque(sorted(steps))
    while queue:
        state = queue.popleft()
        for earlier in sorted(into.get(state, ())):
            if earlier not in steps:
                steps[earlier] = steps[state] + 1
                queue.append(earlier)
    return steps
