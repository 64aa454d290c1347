"""Attention of one engine step: many sequences, their KV in the arena, no copies of it and no expansion of heads.

All new keys and values of a layer are written first, by one indexed write, then read. A *single* is a sequence with one
new token. Its query sees every run of its path (its own, that above it, and so on), and each *level* of the paths is a
few batched matrix products: a `Job` takes a range of neighbouring rows of one row class; the query heads of a KV group
are query rows, and the singles that share a run are further query rows, so a shared prompt is read once for its group.
A job leaves the unnormalised output, the top score and the sum of exponentials; the levels of a query are then merged
exactly.
Rows between those in use are computed and ignored when that is cheaper than one more product.

A *chunk* is a sequence with several new tokens: fused attention per sequence, its query heads as batch over strided,
unexpanded keys. Plan once per step, use for all layers: everything that depends on lengths is built in `__init__`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from treadle.inference.arena import Arena, Run
from treadle.inference.scheduler import Work

GAP = 2
"""Most unused rows between two used ones that a job bridges."""
NEG_INF = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One range of rows, and the queries on each of them."""

    capacity: int
    heads: slice
    """Rows * Hk: the range in the class view [rows * Hk, C, D]."""
    places: slice
    """Entries read of each row: those of the longest run."""
    bias: Tensor | None
    """[rows * Hk, 1, length]: 0 where an entry is seen, -inf behind a run's end; None: all equally long."""
    pairs: slice
    """Its part of the gathered queries: rows * Hk * m of them, m queries a row."""
    queries: int
    """m: queries per row, padded."""


class StepAttention:
    """The attention plan of one forward over `works`: singles first, ordered as their rows are, then chunks."""

    def __init__(self, arena: Arena, works: Sequence[Work], *, heads: int) -> None:
        self._arena = arena
        self._device = arena.k[0].device
        self._kv_heads = arena.kv_heads
        self._group = heads // arena.kv_heads
        added: dict[int, int] = {}
        for work in works:
            added[id(work.run)] = added.get(id(work.run), 0) + len(work.ids)
        self._added = added
        self._singles = [w for w in works if len(w.ids) == 1]
        self._write_index = write_places(arena, works)
        self._jobs: list[Job] = []
        self._levels: list[Tensor | None] = []
        """Per level, where each (single, KV head) finds its result: [B * Hk] indices into the pairs; None: in order."""
        self._found: list[NDArray[np.int64]] = []
        """The levels while they are planned; -1 where a single has no run on the level."""
        self._gather: list[NDArray[np.int64]] = []
        self._pairs = 0
        if self._singles:
            self._plan_singles()
        self._chunks = self._plan_chunks(works)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write the new entries, then attend. q [1, Hq, T, D]; k, v [1, Hk, T, D]; returns [1, T, Hq, D]."""
        dim = q.shape[-1]
        self._arena.k[layer].index_copy_(0, self._write_index, k[0].transpose(0, 1).reshape(-1, dim))
        self._arena.v[layer].index_copy_(0, self._write_index, v[0].transpose(0, 1).reshape(-1, dim))
        out = q.new_empty(1, q.shape[2], q.shape[1], dim)
        if self._singles:
            count = len(self._singles)
            out[0, :count] = self._attend_singles(layer, q[0, :, :count], scale)
        for chunk in self._chunks:
            chunk.attend(layer, q, out, scale)
        return out

    def _attend_singles(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """q [Hq, B, D] -> [B, Hq, D]."""
        heads, count, dim = q.shape
        pairs = q.transpose(0, 1).reshape(count * self._kv_heads, self._group * dim)
        rows = pairs.index_select(0, self._query_index).view(self._pairs, self._group, dim)
        part, top, total = self._part, self._top, self._total
        for job in self._jobs:
            keys, values = self._arena.rows(layer, job.capacity)
            keys, values = keys[job.heads, job.places], values[job.heads, job.places]
            shape = (keys.shape[0], job.queries * self._group, -1)
            queries = rows[job.pairs].view(shape)
            if job.bias is None:
                scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(scale)
            else:
                scores = torch.baddbmm(job.bias, queries, keys.transpose(1, 2), alpha=scale)
            peak = top[job.pairs].view(shape)
            torch.amax(scores, -1, keepdim=True, out=peak)
            scores.sub_(peak).exp_()
            torch.sum(scores, -1, keepdim=True, out=total[job.pairs].view(shape))
            torch.bmm(scores, values, out=part[job.pairs].view(shape))
        return self._merge(part, top, total).view(count, heads, dim)

    def _merge(self, part: Tensor, top: Tensor, total: Tensor) -> Tensor:
        """Join the levels: softmax over all entries of the path. Returns [B * Hk, G, D]."""
        out, peak, mass = (self._place(x, self._levels[0]) for x in (part, top, total))
        for level in self._levels[1:]:
            out2, peak2, mass2 = (self._place(x, level) for x in (part, top, total))
            highest = torch.maximum(peak, peak2)
            weight, weight2 = peak.sub_(highest).exp_(), peak2.sub_(highest).exp_()
            out = out.mul_(weight).addcmul_(out2, weight2)
            mass = mass.mul_(weight).addcmul_(mass2, weight2)
            peak = highest
        return out.div_(mass)

    def _place(self, results: Tensor, level: Tensor | None) -> Tensor:
        """A level's results in the order of the singles and KV heads; None: they lie so already, at the front."""
        if level is None:
            return results[: len(self._singles) * self._kv_heads]
        return results.index_select(0, level)

    def _plan_singles(self) -> None:
        """Jobs and indices for the own level and then for each level of shared runs, from the lowest on."""
        self._add_level([(w.run, [i]) for i, w in enumerate(self._singles)])
        for depth in range(max(len(w.before) for w in self._singles)):
            users: dict[int, tuple[Run, list[int]]] = {}
            for i, work in enumerate(self._singles):
                if depth < len(work.before):
                    run = work.before[-1 - depth]
                    users.setdefault(id(run), (run, []))[1].append(i)
            self._add_level(list(users.values()))
        self._query_index = self._tensor(np.concatenate(self._gather))
        like, size = self._arena.k[0], self._pairs + 1
        # One more pair than computed stands for "no entries on this level": top -inf, mass 0.
        self._part = like.new_zeros(size, self._group, self._arena.head_dim)
        self._top = like.new_full((size, self._group, 1), NEG_INF)
        self._total = like.new_zeros(size, self._group, 1)
        for found in self._found:
            in_order = bool((found == np.arange(len(found))).all())
            self._levels.append(None if in_order else self._tensor(np.where(found < 0, self._pairs, found)))

    def _add_level(self, users: list[tuple[Run, list[int]]]) -> None:
        found = np.full((len(self._singles), self._kv_heads), -1, dtype=np.int64)
        users.sort(key=lambda u: u[0].place)
        start = 0
        for end in range(1, len(users) + 1):
            if end < len(users) and _adjacent(users[end - 1][0], users[end][0]):
                continue
            self._add_job(users[start:end], found)
            start = end
        self._found.append(found.reshape(-1))

    def _add_job(self, users: list[tuple[Run, list[int]]], found: NDArray[np.int64]) -> None:
        """One job over neighbouring rows. Fills `found` [B, Hk] with the places of its queries' results."""
        hk = self._kv_heads
        low, high = users[0][0].row, users[-1][0].row + 1
        most = max(len(u) for _, u in users)
        lengths = np.zeros(high - low, dtype=np.int64)
        members = np.zeros((high - low, most), dtype=np.int64)
        for run, who in users:
            row = run.row - low
            lengths[row] = run.length + self._added.get(id(run), 0)
            members[row, : len(who)] = who
            place = self._pairs + (row * hk + np.arange(hk)[None]) * most + np.arange(len(who))[:, None]
            found[who] = place
        longest, first = int(lengths.max()), users[0][0].offset
        lengths[lengths == 0] = longest  # unused rows: computed on whatever is there, read by nobody
        gather = members[:, None, :] * hk + np.arange(hk)[None, :, None]
        bias = None
        if (lengths != longest).any():
            seen = torch.arange(longest, device=self._device)[None] < self._tensor(lengths)[:, None]
            bias = torch.where(seen, 0.0, NEG_INF).to(self._arena.k[0].dtype)
            bias = bias[:, None].expand(-1, hk, -1).reshape(-1, 1, longest)
        end = self._pairs + gather.size
        self._jobs.append(
            Job(
                capacity=users[0][0].capacity,
                heads=slice(low * hk, high * hk),
                places=slice(first, first + longest),
                bias=bias,
                pairs=slice(self._pairs, end),
                queries=most,
            )
        )
        self._gather.append(gather.reshape(-1))
        self._pairs = end

    def _plan_chunks(self, works: Sequence[Work]) -> list[Chunk]:
        chunks, offset = [], 0
        for work in works:
            n = len(work.ids)
            if n > 1:
                chunks.append(Chunk(self._arena, work, offset=offset, added=self._added, group=self._group))
            offset += n
        return chunks

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


class Chunk:
    """Attention of one sequence with several new tokens: over its earlier runs whole, over its own run causally."""

    def __init__(self, arena: Arena, work: Work, *, offset: int, added: dict[int, int], group: int) -> None:
        self._arena = arena
        self._runs = [(r, r.length + added.get(id(r), 0)) for r in work.before] + [
            (work.run, work.run.length + len(work.ids))
        ]
        self._tokens = slice(offset, offset + len(work.ids))
        self._group = group
        n, seen = len(work.ids), sum(length for _, length in self._runs)
        self._mask: Tensor | None = None
        if seen > n:
            self._mask = torch.ones(n, seen, dtype=torch.bool, device=arena.k[0].device).tril_(seen - n)

    def attend(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """Write this chunk's part of `out` [1, T, Hq, D] from q [1, Hq, T, D]."""
        queries = q[0, :, self._tokens]
        heads, n, dim = queries.shape
        kv_heads = heads // self._group
        keys, values = self._read(layer)
        # Query heads [Hk, G, n, D] -> batch G over the same keys: a stride of 0, not a copy.
        grouped = queries.reshape(kv_heads, self._group, n, dim).transpose(0, 1)
        result = nn.functional.scaled_dot_product_attention(
            grouped,
            keys.expand(self._group, -1, -1, -1),
            values.expand(self._group, -1, -1, -1),
            attn_mask=self._mask,
            is_causal=self._mask is None,
            scale=scale,
        )  # [G, Hk, n, D]
        out[0, self._tokens] = result.permute(2, 1, 0, 3).reshape(n, heads, dim)

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all its runs: [Hk, entries, D] each, a view when there is one run."""
        keys, values = [], []
        for run, length in self._runs:
            k, v = self._arena.entries(layer, run, length)
            keys.append(k)
            values.append(v)
        if len(keys) == 1:
            return keys[0], values[0]
        return torch.cat(keys, 1), torch.cat(values, 1)


def write_places(arena: Arena, works: Sequence[Work]) -> Tensor:
    """Where each (token, KV head) of these works goes in the flat store: [T * Hk]."""
    head = np.arange(arena.kv_heads)
    places = []
    for work in works:
        capacity, n = work.run.capacity, len(work.ids)
        base = work.run.row * arena.kv_heads * capacity + work.run.offset + work.run.length
        places.append((base + np.arange(n)[:, None] + head * capacity).reshape(-1))
    return torch.from_numpy(np.concatenate(places)).to(arena.k[0].device)


def _adjacent(a: Run, b: Run) -> bool:
    """Whether one product over both rows, and those between, is worth while."""
    return a.capacity == b.capacity and a.offset == b.offset and 0 < b.row - a.row <= GAP + 1
