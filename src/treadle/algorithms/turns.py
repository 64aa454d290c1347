"""Turns: the actions of a forest as a table, whatever rows they are stored in.

Rules that credit steps speak of actions, the state that each was taken in, and what came after it. Observations may
be any number of rows, an action cut into pieces is still one, and a context break is no turn: so nothing here counts
rows. An action that several rollouts share is one entry; `rollouts` says how many ran through it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treadle.algorithms.demanded import lacks
from treadle.trajectory.forest import Column, Forest, Index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turns:
    """Columns of K actions, earlier ones first."""

    forest: Forest
    row: Index
    """[K] row where the action begins."""
    before: Index
    """[K] the action before it in time; -1 for first ones."""
    ordinal: Index
    """[K] how many actions came before it in time."""
    number: Index
    """[N] action that a row belongs to; -1 on rows of the world."""
    latest: Index
    """[N] last action at or before the row in time; -1 where none was."""
    end: Index
    """[N] last row of an action at or before the row in time; -1 where none was."""
    rollouts: Column
    """[K] rollouts that ran through it."""

    @classmethod
    def of(cls, forest: Forest) -> Turns:
        """The actions of a forest."""
        begins, acts = forest.begins.tolist(), forest.action.tolist()
        before: list[int] = []
        ordinal: list[int] = []
        latest, end = [-1] * len(forest), [-1] * len(forest)
        for i, p in enumerate(forest.after.tolist()):
            last = latest[p] if p >= 0 else -1
            if begins[i]:
                latest[i] = len(before)
                before.append(last)
                ordinal.append(ordinal[last] + 1 if last >= 0 else 0)
            else:
                latest[i] = last
            end[i] = i if acts[i] else end[p] if p >= 0 else -1
        row = np.flatnonzero(forest.begins)
        known = np.array(latest, dtype=np.int64)
        return cls(
            forest=forest, row=row, before=np.array(before, dtype=np.int64), ordinal=np.array(ordinal, dtype=np.int64),
            number=np.where(forest.action, known, -1), latest=known, end=np.array(end, dtype=np.int64),
            rollouts=forest.up(forest.leaves)[row],
        )

    def __len__(self) -> int:
        return len(self.row)

    @property
    def origin(self) -> Index:
        """[K] row of the world that the action answers; -1 where nothing came before."""
        return self.forest.after[self.row]

    @property
    def group(self) -> Index:
        """[K]."""
        return self.forest.group[self.row]

    @property
    def reward(self) -> Column:
        """[K] what was paid for the action, all its rows together."""
        acts = self.forest.action
        return self._sums(self.number[acts], self.forest.reward[acts])

    @property
    def continuing(self) -> Column:
        """[K] rollouts that acted again after it."""
        later = self.before >= 0
        return self._sums(self.before[later], self.rollouts[later])

    @property
    def last(self) -> Index:
        """[R] last action of each rollout; -1 for one that never acted."""
        return self.latest[self.forest.rollout_leaf]

    def onward(self, value: Column) -> Column:
        """[K] mean over the rollouts through an action of `value` [K] at their next one; 0 for those that end."""
        later = self.before >= 0
        return self._sums(self.before[later], (self.rollouts * value)[later]) / self.rollouts

    def prior(self, value: Column) -> Column:
        """[K] the `value` [N] of what the action answers; the mean of the group's roots where nothing came before."""
        forest, roots = self.forest, self.forest.after < 0
        groups = len(forest.keys)
        count = np.bincount(forest.group[roots], minlength=groups)
        mean = np.bincount(forest.group[roots], weights=value[roots], minlength=groups) / np.maximum(count, 1)
        return np.where(self.origin >= 0, value[self.origin], mean[self.group])

    def rows(self, value: Column) -> Column:
        """[N] the `value` [K] of the action that a row belongs to; 0 on rows of the world."""
        out = np.zeros(len(self.forest))
        acts = self.forest.action
        out[acts] = value[self.number[acts]]
        return out

    def togo(self, value: Column, factor: float) -> Column:
        """[K] value + factor * mean over what follows in time, forks counting the same, 0 after the end."""
        gain, factors = np.zeros(len(self.forest)), np.ones(len(self.forest))
        gain[self.row], factors[self.row] = value, factor
        return self.forest.fold(gain, factor=factors)[0][self.row]

    def states(self, rule: str) -> Index:
        """[K] number of the world's state that each action was taken in, equal within a task.

        First actions without a key share the start of their group. Demonstrated ones without a key stand alone.
        Raises ValueError when a later action that was sampled has none.
        """
        forest = self.forest
        state = forest.state[self.row].copy()
        most = int(state.max(initial=-1)) + 1
        start = (state < 0) & (self.before < 0)
        state[start] = most + self.group[start]
        unknown = np.flatnonzero(state < 0)
        sampled = int(forest.policy[self.row[unknown]].sum())
        if sampled:
            raise lacks(
                rule, got=f"{sampled} of {len(self)} actions without a state key", expected="one on each",
                todo="let the environment's step return state_key, or choose a rule that needs none",
            )
        state[unknown] = most + len(forest.keys) + np.arange(len(unknown))
        return state

    def _sums(self, of: Index, value: Column) -> Column:
        return np.bincount(of, weights=value, minlength=len(self)).astype(np.float64)
