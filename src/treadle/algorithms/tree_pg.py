"""tree_pg: the policy gradient on a tree of forks, without bias.

A tree that is forked more often behind some actions than behind others does not show them as often as the policy takes
them: whoever averages over its leaves follows another gradient than the policy's. Here every node counts as often as a
random walk from the group's root would come by it (`descent`), is worth the mean over its children's worth (`q`), and
is compared with what does not depend on it:

    A = q - b        b = mean q of the *other* siblings in time, else the b of what came before

At the root of a group without siblings b is `root`: a number from before the update, never the group's own return.

What makes it exact, each found by breaking it (docs/tree_pg.md): on-policy tokens, no division by a standard
deviation, a constant denominator, and forks whose number was decided before the children were sampled. The last two
are demands on the run, which a recipe refuses to break (`conditions.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, NodeCredit, Scope
from treadle.core.errors import ConfigError
from treadle.trajectory.forest import Column, Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePg:
    """q minus the mean q of the other siblings, weighted by the chance of coming by."""

    name: ClassVar[str] = "tree_pg"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "weighed segment"
    min_rollouts: ClassVar[int] = 2
    constant_denominator: ClassVar[bool] = True
    fanout_before_children: ClassVar[bool] = True

    root: float = 0.0
    """What is expected of a group before anything is sampled, in units of return: used up to the first fork, so not at
    all where a group forks at its prompt. A number that was known before the update, such as the mean of an earlier
    run; it changes the noise and not the direction."""
    std: bool = False
    """Stands here to be refused: dividing by a standard deviation turns the gradient."""

    def __post_init__(self) -> None:
        if self.std:
            raise ConfigError(
                "tree_pg.std: got true, expected false: what is divided by a standard deviation is another gradient; "
                "use grpo or gigpo to scale by it"
            )
        if not np.isfinite(self.root):
            raise ConfigError(f"tree_pg.root: got {self.root}, expected a finite number")

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        q = forest.child_mean(forest.returns)
        return NodeCredit(advantage=q - others(forest, q, at_root=self.root), weight=forest.descent)


def others(forest: Forest, value: Column, *, at_root: Column | float) -> Column:
    """[N] mean value of a row's siblings in time, itself left out; the time predecessor's where it has none.

    `value` is [N]; a rollout that ends where others go on is a sibling too, with its return. Roots of one group are
    siblings. `at_root`, a number or [N], is what a group's only root gets.
    """
    b, fan = np.empty(len(forest)), np.ones(len(forest))
    roots, inner = np.flatnonzero(forest.after < 0), np.flatnonzero(forest.after >= 0)
    per_group = np.bincount(forest.group[roots], weights=value[roots], minlength=len(forest.keys))
    fan[roots] = np.bincount(forest.group[roots], minlength=len(forest.keys))[forest.group[roots]]
    b[roots] = per_group[forest.group[roots]]
    below = forest.at_leaves(forest.returns) + np.bincount(
        forest.after[inner], weights=value[inner], minlength=len(forest)
    )
    fan[inner] = forest.children[forest.after[inner]]
    b[inner] = below[forest.after[inner]]
    alone = fan < 2
    b = np.where(alone, at_root, (b - value) / np.where(alone, 1.0, fan - 1))
    for row in inner[alone[inner]].tolist():  # parents first
        b[row] = b[forest.after[row]]
    return b
