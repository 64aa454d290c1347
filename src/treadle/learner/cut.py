"""Cutting a pack into smaller ones that pay the same edges.

As in `pack`, a part holds leaves that follow each other, with all of their ancestors (`Tree.split`). What several parts
share is replicated as context, and an edge is paid in the first part that holds its target. So losses and gradients of
the parts add up to those of the whole.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from treadle.learner.pack import PackedBatch
from treadle.learner.tree import Node, Tree
from treadle.trajectory.forest import Index


def cut(batch: PackedBatch, budget_tokens: int) -> list[PackedBatch]:
    """Packs of at most `budget_tokens` tokens, a longer single path excepted; the pack itself if it is small enough."""
    if batch.tokens <= budget_tokens:
        return [batch]
    tree = Tree([node.parent for node in batch.nodes], [node.length for node in batch.nodes])
    paid = np.zeros(batch.tokens, dtype=bool)
    return [_part(batch, chosen, paid) for chosen in tree.split(budget_tokens)]


def _part(batch: PackedBatch, chosen: Index, paid: NDArray[np.bool_]) -> PackedBatch:
    """The pack of these nodes, which are in order. Marks the targets that it pays for in `paid` [T]."""
    kept = np.zeros(batch.tokens, dtype=bool)
    for node in (batch.nodes[i] for i in chosen):
        kept[node.start : node.start + node.length] = True
    place = np.concatenate([[0], kept.cumsum()])  # [T + 1] kept tokens before each
    tgt = batch.tgt.numpy()
    mine = np.flatnonzero(kept[tgt] & ~paid[tgt])
    paid[tgt[mine]] = True
    at, new = torch.from_numpy(np.flatnonzero(kept)), torch.from_numpy(place)
    edges = torch.from_numpy(mine)
    number = {int(old): i for i, old in enumerate(chosen)}
    return PackedBatch(
        ids=batch.ids[at], pos=batch.pos[at], end=new[batch.end[at]], src=new[batch.src[edges]],
        tgt=new[batch.tgt[edges]], row=batch.row[mine], offset=batch.offset[mine], copies=batch.copies[mine],
        version=batch.version[mine],
        nodes=tuple(
            Node(int(place[node.start]), node.length, number.get(node.parent, -1))
            for node in (batch.nodes[i] for i in chosen)
        ),
        terms=batch.terms.at(edges),
    )
