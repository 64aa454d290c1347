"""Packing: a forest as flat tensors in which every shared prefix is computed once.

Tokens lie in depth-first pre-order over *context*, so a segment's subtree is one contiguous range and one integer per
token is the whole attention mask: q sees k <=> k <= q < end[k]. A token's position is its depth. A loss edge (src, tgt)
says that the hidden state at src predicts the token at tgt: src is the last token of the parent for a segment's first
token, else tgt - 1. A branch point stands in several edges, a token of the world in none.

A forest over the token budget becomes several packs: each holds leaves that follow each other, with their paths, cut
where fewest tokens are computed twice (`Tree.split`). Ancestors are replicated as loss-free context; every edge is paid
in exactly one pack, so losses and gradients add up exactly, whatever the budget. A single path over the budget gets a
pack of its own, which the learner computes in runs of tokens (see `chunks`). A group for which sharing does not pay
(see `cost`) is laid out as paths apart: shared tokens stand in each, their edges in the first.
Segments without anything to train at or below them are left out. What is laid out are not segments but `weave`'s
strands: segments of their own, or with equal beginnings joined.

`nodes` is the same tree for per-node attention, with chains merged: a strand whose only child in the pack follows it
forms one node with that child, so a plain rollout of many turns is one node below the prompt it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.algorithms.credit import Collapsed
from treadle.algorithms.losses import LossTerms
from treadle.learner.tree import Node, Sharing, Tree, always
from treadle.learner.weave import Strand, weave
from treadle.models.memo import LANES, Names, Sums
from treadle.trajectory.forest import Forest, Index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """T tokens and E loss edges."""

    ids: Tensor
    """long[T]"""
    pos: Tensor
    """long[T] depth in tokens, counted from the context's root."""
    end: Tensor
    """long[T] end (exclusive) of the token's subtree: q sees k <=> k <= q < end[k]."""
    src: Tensor
    """long[E] token whose hidden state predicts ..."""
    tgt: Tensor
    """long[E] ... this token. Strictly increasing."""
    terms: LossTerms
    row: Index
    """[E] forest row of the target's segment; the first one where several were woven together."""
    offset: Index
    """[E] place of the target within that segment."""
    copies: Index
    """[E] action tokens of the forest that this edge stands for."""
    version: Index
    """[E] policy version that sampled the target, of the first token where several were woven together; -1 where no
    policy did."""
    nodes: tuple[Node, ...]
    """Together they cover 0 .. T, in order."""

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.ids)

    @property
    def edges(self) -> int:
        """E."""
        return len(self.tgt)

    @property
    def trained(self) -> int:
        """Action tokens of the forest that the edges stand for."""
        return int(self.copies.sum())


def pack(
    forest: Forest, collapsed: Collapsed, *, denominator: float, budget_tokens: int, tolerance: float | None = None,
    shares: Sharing = always,
) -> list[PackedBatch]:
    """Packs of at most `budget_tokens` tokens (a longer single path gets its own); none when nothing trains.

    `tolerance` is how far log-probs may differ for equal tokens in equal contexts to be one (see `weave`); None keeps
    every token of every segment apart. `shares` decides for every group whether it is a tree. Raises ValueError for a
    budget below 1 or a denominator that is not positive.
    """
    if budget_tokens < 1:
        raise ValueError(f"budget_tokens: got {budget_tokens}, expected >= 1")
    if not denominator > 0:
        raise ValueError(f"denominator: got {denominator}, expected > 0")
    strands = weave(forest, collapsed, tolerance=tolerance)
    whole = Tree([strand.parent for strand in strands], [len(strand) for strand in strands])
    tree, which = whole.apart(shares)
    paid = np.zeros(len(strands), dtype=bool)
    packs: list[PackedBatch] = []
    for order in tree.split(budget_tokens):
        chosen = which[order]
        first = np.zeros(len(order), dtype=bool)
        first[np.unique(chosen, return_index=True)[1]] = True
        place = {int(run): i for i, run in enumerate(order)}
        parent = np.array([place.get(int(tree.parent[run]), -1) for run in order], dtype=np.int64)
        owned = first & ~paid[chosen]
        paid[chosen] = True
        packs.append(_lay_out(forest, [strands[i] for i in chosen], denominator, parent, owned))
    return packs


def named(batch: PackedBatch, names: Names) -> Sums:
    """The names of all tokens' contexts: [T, 2]."""
    ids = batch.ids.numpy()
    sums = np.zeros((len(ids), LANES), dtype=np.uint64)
    for node in batch.nodes:
        stop = node.start + node.length
        before = None
        if node.parent >= 0:
            above = batch.nodes[node.parent]
            before = sums[above.start + above.length - 1]
        start = int(batch.pos[node.start])
        sums[node.start : stop] = names.sums(ids[node.start : stop], start=start, before=before)
    return sums


def looked_at(batch: PackedBatch, *, behind: bool = False) -> NDArray[np.bool_]:
    """[T] whether a token's state matters: somebody behind it sees it, or an edge begins at it.

    With `behind` also where an edge ends at it.
    """
    out: NDArray[np.bool_] = batch.end.numpy() > np.arange(batch.tokens) + 1
    out[batch.src.numpy()] = True
    if behind:
        out[batch.tgt.numpy()] = True
    return out


def _lay_out(
    forest: Forest, chosen: Sequence[Strand], denominator: float, parent: Index, owned: NDArray[np.bool_]
) -> PackedBatch:
    """One pack from its strands in pre-order; `owned` marks the strands whose edges it pays."""
    n = len(chosen)
    length = np.array([len(strand) for strand in chosen], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(length)[:-1]])
    depth = np.zeros(n, dtype=np.int64)
    end = start + length
    for i in range(n):
        if parent[i] >= 0:
            depth[i] = depth[parent[i]] + length[parent[i]]
    for i in range(n - 1, -1, -1):
        if parent[i] >= 0:
            end[parent[i]] = max(end[parent[i]], end[i])
    within = np.arange(int(length.sum())) - np.repeat(start, length)

    which = np.repeat(np.arange(n), length)  # [T] place of each token's strand
    before = np.where(parent >= 0, start[parent] + length[parent] - 1, -1)
    source = np.where(within > 0, np.arange(len(which)) - 1, before[which])  # [T]
    mass = np.concatenate([strand.mass for strand in chosen])
    tgt = np.flatnonzero(owned[which] & (source >= 0) & (mass > 0))

    def edges(name: str) -> NDArray[Any]:
        return np.asarray(np.concatenate([getattr(strand, name) for strand in chosen])[tgt])

    row, offset = edges("row"), edges("offset")
    return PackedBatch(
        ids=_long(np.concatenate([strand.ids for strand in chosen])), pos=_long(depth[which] + within),
        end=_long(end[which]), src=_long(source[tgt]), tgt=_long(tgt), row=row, offset=offset,
        copies=edges("copies"), version=_sampled_by(forest, row, offset), nodes=_merge(start, length, parent),
        terms=_terms(forest, edges, denominator),
    )


def _terms(forest: Forest, edges: Callable[[str], NDArray[Any]], denominator: float) -> LossTerms:
    """The terms of a pack's edges: sums from the strands, notes of the token that each edge stands for."""
    at = forest.start[edges("row")] + edges("offset")

    def note(name: str) -> Tensor | None:
        return torch.from_numpy(forest.notes[name][at]) if name in forest.notes else None

    taught = edges("taught")
    return LossTerms(
        old=torch.from_numpy(edges("old")), pos_w=torch.from_numpy(edges("pos")),
        neg_w=torch.from_numpy(edges("neg")), mass=torch.from_numpy(edges("mass")), denominator=denominator,
        prox=note("prox"), ref=note("ref"), value_old=note("value"),
        ret=torch.from_numpy(edges("ret")) if taught.any() else None,
        ret_mass=torch.from_numpy(taught) if taught.any() else None,
    )


def _sampled_by(forest: Forest, row: Index, offset: Index) -> Index:
    """[E] policy version of each token, given by its row and its place there; -1 where no policy sampled it."""
    out = np.full(len(row), -1, dtype=np.int64)
    for number in np.unique(row):
        runs = np.array(forest.segments[number].versions, dtype=np.int64).reshape(-1, 2)  # (version, tokens)
        if len(runs):
            mine = row == number
            out[mine] = runs[np.searchsorted(runs[:, 1].cumsum(), offset[mine], side="right"), 0]
    return out


def _merge(start: Index, length: Index, parent: Index) -> tuple[Node, ...]:
    """Rows as nodes; an only child joins its parent, which it follows directly in pre-order."""
    children = np.bincount(parent[parent >= 0], minlength=len(parent))
    node_of: list[int] = []
    nodes: list[Node] = []
    for i in range(len(parent)):
        up = int(parent[i])
        if up >= 0 and children[up] == 1:
            held = nodes[node_of[up]]
            nodes[node_of[up]] = Node(held.start, held.length + int(length[i]), held.parent)
            node_of.append(node_of[up])
        else:
            nodes.append(Node(int(start[i]), int(length[i]), node_of[up] if up >= 0 else -1))
            node_of.append(len(nodes) - 1)
    return tuple(nodes)


def _long(column: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(column, dtype=np.int64))
