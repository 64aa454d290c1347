"""Weaving: a forest's segments as strands, in which equal tokens in equal contexts are one.

Rollouts of a group share more than their prompt. A trained policy often writes the same words again: the same fence,
the same command, the same whole turn, and the world answers the same. Groups share the system prompt. All of these
are the same token after the same tokens, so the model computes the same thing for them; only what the loss asks of it
differs, and that adds up: a loss edge is linear in (A+, A-, mass) for one behaviour log-prob.

Two sampled tokens are the same edge only if their recorded log-probs agree within `tolerance`: a token sampled by
another policy version, with another log-prob, stays apart. At 0 the packed loss is exactly that of the segments one by
one; at the engine's own parity bound (1e-4) it differs by less than recording them does. None weaves nothing: one
strand per segment, so that each token keeps its own edge.

Built as a tree of tokens, then cut where it branches: a strand is a maximal run without a fork inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from treadle.algorithms.credit import Collapsed
from treadle.trajectory.forest import Column, Forest, Index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strand:
    """n >= 1 tokens in one context. All columns have length n."""

    parent: int
    """Strand that this one continues, an earlier one; -1 for a root."""
    ids: NDArray[np.int32]
    old: Column
    """Behaviour log-probs; NaN where the policy did not sample."""
    pos: Column
    neg: Column
    mass: Column
    """Sums over all tokens that are this one; mass 0 means no loss edge."""
    ret: Column
    """Sum of mass * return over those of them that have a return ..."""
    taught: Column
    """... and their mass."""
    copies: Index
    """How many action tokens with mass are this one."""
    row: Index
    """Forest row of the first token that is this one; of the first that trains, if one does."""
    offset: Index
    """Its place within that row's segment."""

    def __len__(self) -> int:
        return len(self.ids)


def weave(forest: Forest, collapsed: Collapsed, *, tolerance: float | None) -> list[Strand]:
    """The strands of a forest, parents before children; what has nothing to train at or below it is left out."""
    collapsed = Collapsed(
        pos=forest.spread(collapsed.pos), neg=forest.spread(collapsed.neg), mass=forest.spread(collapsed.mass),
        returns=collapsed.returns,
    )
    kept = _needed(forest, collapsed)
    if tolerance is None:
        return _one_each(forest, collapsed, kept)
    tree = _TokenTree(tolerance)
    ends = np.full(len(forest), -1, dtype=np.int64)
    for row in kept.tolist():
        parent = forest.parent[row]
        ends[row] = tree.add(forest, collapsed, row, after=int(ends[parent]) if parent >= 0 else -1)
    return tree.strands()


def _needed(forest: Forest, collapsed: Collapsed) -> Index:
    """Rows with something to train at or below them, in context."""
    needed = forest.action & np.logical_or.reduceat(collapsed.mass > 0, forest.start[:-1])
    for row in range(len(forest) - 1, -1, -1):
        if needed[row] and forest.parent[row] >= 0:
            needed[forest.parent[row]] = True
    return np.flatnonzero(needed)


def _one_each(forest: Forest, collapsed: Collapsed, kept: Index) -> list[Strand]:
    place = {int(row): i for i, row in enumerate(kept)}
    strands = []
    for row in kept.tolist():
        segment, n = forest.segments[row], int(forest.length[row])
        old = np.full(n, np.nan) if segment.logprobs is None else segment.logprobs.astype(np.float64)
        own = slice(forest.start[row], forest.start[row + 1])
        mass = collapsed.mass[own] if forest.action[row] else np.zeros(n)
        ret, taught = _lesson(collapsed, own, mass)
        strands.append(Strand(
            parent=place.get(int(forest.parent[row]), -1), ids=segment.ids, old=old, pos=collapsed.pos[own],
            neg=collapsed.neg[own], mass=mass, ret=ret, taught=taught, copies=(mass > 0).astype(np.int64),
            row=np.full(n, row), offset=np.arange(n),
        ))
    return strands


def _lesson(collapsed: Collapsed, own: slice, mass: Column) -> tuple[Column, Column]:
    """mass * return, and mass, of these tokens where they have a return; 0 elsewhere."""
    if collapsed.returns is None:
        return np.zeros_like(mass), np.zeros_like(mass)
    returns = collapsed.returns[own]
    taught = np.where(np.isnan(returns), 0.0, mass)
    return np.where(taught > 0, returns, 0.0) * taught, taught


@dataclass(slots=True)
class _TokenTree:
    """A tree with one node per token, as growing columns."""

    tolerance: float
    parent: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    old: list[float] = field(default_factory=list)
    pos: list[float] = field(default_factory=list)
    neg: list[float] = field(default_factory=list)
    mass: list[float] = field(default_factory=list)
    ret: list[float] = field(default_factory=list)
    taught: list[float] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    below: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """(node, token id) to the nodes that continue it so: more than one where log-probs disagree."""
    fan: list[int] = field(default_factory=list)
    """How many nodes continue each node."""

    def add(self, forest: Forest, collapsed: Collapsed, row: int, *, after: int) -> int:
        """Walk one segment down from node `after`, making what is not there; the node of its last token."""
        segment = forest.segments[row]
        acts = bool(forest.action[row])
        own = slice(forest.start[row], forest.start[row + 1])
        lesson = _lesson(collapsed, own, collapsed.mass[own])
        columns = [c.tolist() for c in (collapsed.pos[own], collapsed.neg[own], collapsed.mass[own], *lesson)]
        logprobs = segment.logprobs.tolist() if segment.logprobs is not None else [np.nan] * len(segment)
        at = after
        for offset, (token, old, pos, neg, mass, ret, taught) in enumerate(
            zip(segment.ids.tolist(), logprobs, *columns, strict=True)
        ):
            trains = acts and mass > 0
            at = self._step(at, token, old if trains else None)
            if at == len(self.row):
                self.row.append(row)
                self.offset.append(offset)
            if trains:
                if self.mass[at] == 0.0:  # what came here before does not train
                    self.old[at], self.row[at], self.offset[at] = old, row, offset
                self.pos[at] += pos
                self.neg[at] += neg
                self.mass[at] += mass
                self.ret[at] += ret
                self.taught[at] += taught
                self.copies[at] += 1
        return at

    def _step(self, at: int, token: int, old: float | None) -> int:
        """The node of `token` after `at` whose log-prob agrees; a new one if there is none. None asks for no edge."""
        nodes = self.below.setdefault((at, token), [])
        for node in nodes:
            if old is None or self.mass[node] == 0.0 or self._agree(self.old[node], old):
                return node
        made = len(self.ids)
        nodes.append(made)
        self.parent.append(at)
        self.ids.append(token)
        self.old.append(np.nan)
        for column in (self.pos, self.neg, self.mass, self.ret, self.taught):
            column.append(0.0)
        self.copies.append(0)
        self.fan.append(0)
        if at >= 0:
            self.fan[at] += 1
        return made

    def _agree(self, held: float, new: float) -> bool:
        return abs(held - new) <= self.tolerance or (held != held and new != new)  # NaN: neither was sampled

    def strands(self) -> list[Strand]:
        """Maximal runs without a fork inside."""
        runs: list[list[int]] = []
        of: list[int] = []
        for node, parent in enumerate(self.parent):
            if parent >= 0 and self.fan[parent] == 1:
                of.append(of[parent])
                runs[of[parent]].append(node)
            else:
                of.append(len(runs))
                runs.append([node])
        ids = np.array(self.ids, dtype=np.int32)
        old, pos, neg, mass, ret, taught = (
            np.array(c, dtype=np.float64) for c in (self.old, self.pos, self.neg, self.mass, self.ret, self.taught)
        )
        copies, row, offset = (np.array(c, dtype=np.int64) for c in (self.copies, self.row, self.offset))
        return [
            Strand(
                parent=of[self.parent[run[0]]] if self.parent[run[0]] >= 0 else -1, ids=ids[run], old=old[run],
                pos=pos[run], neg=neg[run], mass=mass[run], ret=ret[run], taught=taught[run], copies=copies[run],
                row=row[run], offset=offset[run],
            )
            for run in runs
        ]
