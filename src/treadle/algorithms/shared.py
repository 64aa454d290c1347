"""What a shared sampled segment gets: how numbers of rollouts become the number of a segment that several run through.

Rollouts that fork have a start in common. It was sampled once, but each of them has a say about it, so its credit has
several meanings, and a recipe names one (`algorithm.shared`):

    path_sum    the sum over its rollouts: exactly what training each rollout on its own would do
    mean        the mean over its rollouts: every sampled token counts once
    first       what the first rollout says, in the order of the group: the others' say is lost, never a default
    node        the sum over its rollouts, each weighted by the chance that a random walk from the group's root ends
                with it: forking often somewhere gives that place no more weight

Where nothing is shared the first three are one. `node` weighs the n rollouts of such a group by 1/n each.

A rule that gives a segment one advantage, whoever runs through it, still leaves open how much it counts: the same four,
but for `first`, which has nothing to choose from. A rule that says itself how much each segment counts (`imitation`,
`tree_pg`) keeps its weights under `path_sum` and `node`, and refuses the others. A recipe refuses by what a rule says
that it gives (`conditions.py`), an update by what it gave (`credit.refusal` has the line for both).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from treadle.trajectory.forest import Column, Forest


class Shared(Protocol):
    """From rollouts to segments."""

    name: ClassVar[str]
    chooses: ClassVar[bool]
    """True when it takes one rollout's advantage: refused where a segment has only one."""
    overrules: ClassVar[bool]
    """True when it contradicts weights that a rule gives its segments: refused there."""

    def through(self, forest: Forest, per_rollout: Column) -> Column:
        """[N] the number of each row, from those [R] of the rollouts through it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSum:
    """The sum over the rollouts through a segment."""

    name: ClassVar[str] = "path_sum"
    chooses: ClassVar[bool] = False
    overrules: ClassVar[bool] = False

    def through(self, forest: Forest, per_rollout: Column) -> Column:
        """[N]."""
        return forest.up(forest.at_leaves(per_rollout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean over the rollouts through a segment."""

    name: ClassVar[str] = "mean"
    chooses: ClassVar[bool] = False
    overrules: ClassVar[bool] = True

    def through(self, forest: Forest, per_rollout: Column) -> Column:
        """[N]."""
        return forest.leaf_mean(per_rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The number of the first rollout through a segment, by its place in the group."""

    name: ClassVar[str] = "first"
    chooses: ClassVar[bool] = True
    overrules: ClassVar[bool] = True

    def through(self, forest: Forest, per_rollout: Column) -> Column:
        """[N]."""
        count = len(forest.rollouts)
        first = np.full(len(forest) + 1, count, dtype=np.int64)  # the last place takes what roots pass on
        np.minimum.at(first, forest.rollout_leaf, np.arange(count))
        for row in range(len(forest) - 1, -1, -1):
            before = forest.after[row]
            first[before] = min(first[before], first[row])
        return np.asarray(per_rollout, dtype=np.float64)[first[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWeight:
    """The sum over the rollouts through a segment, each times the chance that a random walk in time ends with it."""

    name: ClassVar[str] = "node"
    chooses: ClassVar[bool] = False
    overrules: ClassVar[bool] = False

    def through(self, forest: Forest, per_rollout: Column) -> Column:
        """[N]."""
        chance = (forest.descent / np.maximum(forest.children, 1.0))[forest.rollout_leaf]
        return forest.up(forest.at_leaves(per_rollout * chance))


SHARED: Mapping[str, type[Shared]] = {kind.name: kind for kind in (PathSum, Mean, First, NodeWeight)}
