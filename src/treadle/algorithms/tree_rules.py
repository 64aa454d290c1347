"""Rules that read a tree of forks: what a branch is worth beside the others, from outcomes alone.

They differ in what a node is worth and what it is compared with. `tree_grpo` compares rollouts: with those of the same
tree and with the whole group. `treerl`, `spo_tree` and `treerpo` compare nodes: the value of an action is a mean over
what came of it, over rollouts or over branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, PathCredit, Scope
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Forest, center


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpo:
    """grpo within the tree plus grpo within the group (2509.21240).

    Rollouts with the same first action are one tree; one that shares it with nobody has the group's part alone.
    """

    name: ClassVar[str] = "tree_grpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "rollout"
    min_rollouts: ClassVar[int] = 2

    eps: float = 1e-6
    """Added to the standard deviations, in units of reward."""

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"tree_grpo.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> PathCredit:
        """One advantage per rollout."""
        turns = Turns.of(forest)
        first = np.arange(len(turns))
        for action in np.flatnonzero(turns.before >= 0).tolist():  # earlier actions first
            first[action] = first[turns.before[action]]
        last = turns.last
        tree = np.where(last >= 0, np.append(first, 0)[last], len(turns) + forest.rollout_group)
        within = center(forest.returns, tree, std=True, eps=self.eps)
        return PathCredit(advantage=within + center(forest.returns, forest.rollout_group, std=True, eps=self.eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRl:
    """[(V - V_root) + (V - V_parent)] / sqrt(rollouts through the action) (2506.11902).

    V is the mean over the rollouts through a node of their leave-one-out returns.
    """

    name: ClassVar[str] = "treerl"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        turns = Turns.of(forest)
        left_out = center(forest.returns, forest.rollout_group, loo=True)
        value = forest.leaf_mean(left_out)
        count = np.bincount(forest.rollout_group, minlength=len(forest.keys))
        root = np.bincount(forest.rollout_group, weights=left_out, minlength=len(forest.keys)) / np.maximum(count, 1)
        own = value[turns.row]
        gain = (own - root[turns.group]) + (own - turns.prior(value))
        return NodeCredit(advantage=turns.rows(gain / np.sqrt(turns.rollouts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoTree:
    """V_child - V_parent, V the mean of a node's children's (2505.23564)."""

    name: ClassVar[str] = "spo_tree"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        turns = Turns.of(forest)
        value = forest.child_mean(forest.returns)
        return NodeCredit(advantage=turns.rows(value[turns.row] - turns.prior(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRpo:
    """(V - mean) / (sample standard deviation + eps) among the actions that answer the same thing (2506.05183).

    V is the mean of a node's children's. An action without such a sibling has nothing to be compared with and gets 0.
    """

    name: ClassVar[str] = "treerpo"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "segment"
    min_rollouts: ClassVar[int] = 2

    eps: float = 1e-6
    """Added to the standard deviation, in units of reward."""

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ConfigError(f"treerpo.eps: got {self.eps}, expected > 0")

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        turns = Turns.of(forest)
        siblings = np.where(turns.origin >= 0, turns.origin, len(forest) + turns.group)
        value = forest.child_mean(forest.returns)[turns.row]
        return NodeCredit(advantage=turns.rows(center(value, siblings, std=True, eps=self.eps)))
