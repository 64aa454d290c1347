"""Context trees of runs of tokens: what packing splits, and what attention walks.

Runs are numbered so that parents come before children. `split` makes the runs of packs; `apart` undoes sharing, for
groups where sharing does not pay (see `cost`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from treadle.trajectory.forest import Index

PACK = 32
"""Tokens in whose time a pack does what it does once: reading all weights, adding up all their gradients."""
Sharing = Callable[["Tree", Sequence[int]], bool]
"""Whether the group below a root, given as the numbers of its runs, is laid out as a tree; else its paths lie apart."""


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens with one context: a segment, or a chain of segments without forks between them."""

    start: int
    """First token in the pack."""
    length: int
    parent: int
    """Index of the node before it in context; -1 for a root. Parents precede children."""


class Tree:
    """A context tree: runs of tokens by the run that each continues, an earlier one, or -1 for a root."""

    def __init__(self, parent: Sequence[int] | Index, length: Sequence[int] | Index) -> None:
        self.parent = np.array(parent, dtype=np.int64)
        self.length = np.array(length, dtype=np.int64)
        self.children: list[list[int]] = [[] for _ in parent]
        self.roots: list[int] = []
        for i, before in enumerate(self.parent.tolist()):
            if before >= i:
                raise ValueError(f"tree: got run {before} as the parent of run {i}, expected an earlier one")
            (self.children[before] if before >= 0 else self.roots).append(i)

    def split(self, budget: int) -> Iterator[Index]:
        """Runs of each pack in depth-first pre-order: leaves in order, with their paths, that together fit the budget.

        What the leaves of two packs share is computed in both, so packs end where that is least: no other cuts of the
        same order compute fewer tokens, a pack counted as PACK of them. A path over the budget has a pack of its own.
        """
        paths = [self.path(leaf) for leaf in self.leaves(self.roots)]
        whole = [int(self.length[path].sum()) for path in paths]
        fresh = [
            int(self.length[[run for run in path if run not in before]].sum())
            for before, path in zip([set[int](), *map(set, paths)], paths, strict=False)
        ]
        for start, stop in _cuts(whole, fresh, budget):
            yield np.array(list(dict.fromkeys(run for path in paths[start:stop] for run in path)), dtype=np.int64)

    def below(self, root: int) -> list[int]:
        """A run and all below it, in pre-order."""
        found, stack = list[int](), [root]
        while stack:
            i = stack.pop()
            found.append(i)
            stack += self.children[i][::-1]
        return found

    def leaves(self, starts: Sequence[int]) -> Iterator[int]:
        """Runs that nothing continues, at or below these, in pre-order."""
        stack = list(starts[::-1])
        while stack:
            i = stack.pop()
            if not self.children[i]:
                yield i
            stack += self.children[i][::-1]

    def path(self, run: int) -> list[int]:
        """From the root to a run."""
        path = [run]
        while self.parent[path[-1]] >= 0:
            path.append(int(self.parent[path[-1]]))
        return path[::-1]

    def apart(self, shares: Sharing) -> tuple[Tree, Index]:
        """The tree in which only groups that share are trees, and the run here that each run there is."""
        parent, which = list[int](), list[int]()
        for root in self.roots:
            group = self.below(root)
            if len(self.children[root]) == 0 or shares(self, group):
                place = {run: len(which) + i for i, run in enumerate(group)}
                parent += [place.get(int(self.parent[run]), -1) for run in group]
                which += group
                continue
            for leaf in self.leaves([root]):
                path = self.path(leaf)
                parent += [-1, *range(len(which), len(which) + len(path) - 1)]
                which += path
        chosen: NDArray[np.int64] = np.array(which, dtype=np.int64)
        return Tree(parent, self.length[chosen]), chosen


def _cuts(whole: Sequence[int], fresh: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Leaves start .. stop of each pack, by dynamic programming over the last pack's start.

    `whole` are the tokens of each leaf's path, `fresh` those of them that the path before it has not. A pack of leaves
    i .. j has the whole ones of i and the fresh ones of those behind it.
    """
    sums = [0, *accumulate(fresh)]
    best, begun = [0.0], [0]
    for stop in range(1, len(whole) + 1):
        least, chosen = math.inf, stop - 1
        for start in range(stop - 1, -1, -1):
            size = whole[start] + sums[stop] - sums[start + 1]
            if size > budget and start < stop - 1:
                break
            if best[start] + size + PACK <= least:
                least, chosen = best[start] + size + PACK, start
        best.append(least)
        begun.append(chosen)
    cuts, stop = list[tuple[int, int]](), len(whole)
    while stop:
        cuts.append((begun[stop], stop))
        stop = begun[stop]
    return cuts[::-1]


def always(tree: Tree, group: Sequence[int]) -> bool:
    """Every group is a tree."""
    return True


def never(tree: Tree, group: Sequence[int]) -> bool:
    """Every path lies apart: the padded batch of other trainers, without the padding."""
    return False


def require_order(nodes: Sequence[Node], ends: Sequence[int], tokens: int) -> None:
    """Raise ValueError unless nodes are a pre-order of 0 .. tokens and `ends` [tokens] are their subtrees' ends."""
    at = 0
    path: list[int] = []
    for number, node in enumerate(nodes):
        while path and path[-1] != node.parent:
            done = nodes[path.pop()]
            if ends[done.start] != at:
                raise ValueError(f"pack: the subtree at token {done.start} ends at {at}, got end {ends[done.start]}")
        if node.start != at or node.length < 1 or (node.parent >= 0 and not path):
            raise ValueError(
                f"pack: node {number} is {node}, expected one of at least one token at {at} that goes on from an open "
                "path: nodes lie in depth-first pre-order"
            )
        path.append(number)
        at += node.length
    wrong = next((nodes[i] for i in path if ends[nodes[i].start] != at), None)
    if at != tokens or wrong is not None:
        raise ValueError(f"pack: nodes cover {at} of {tokens} tokens; subtree that ends elsewhere: {wrong}")
