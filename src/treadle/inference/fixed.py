"""Fixed shapes: to the last bit, a token depends on the weights, its own context and its stream, and on nothing else.

A sum of floats depends on the order of adding, and kernels choose that order by shape. So in deterministic mode no
shape depends on what else is there:

    layers, head    always on exactly `rows` rows; what is missing is padding, whose results nobody reads
    attention       one query at a time, in the same call whether its token was prefilled or decoded, over its own keys
                    and values, laid side by side in one place, so that neither nodes nor rows nor strides show
    drawing         one context at a time, from one buffer

What is left to trust is that a kernel treats all rows of one shape alike, wherever they stand and whatever stands
beside them. `prove` looks at that on the model itself, before anything is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.core import compute
from treadle.core.errors import ModelError
from treadle.inference.arena import Arena, Run
from treadle.inference.attention import write_places
from treadle.inference.flight import Flight
from treadle.inference.sampler import Drawn, Sampler
from treadle.inference.scheduler import Work
from treadle.models import Policy
from treadle.models.dims import Dims

ORDERS = 3
"""Orders of the rows that the proof tries."""


class FixedShapes:
    """How a worker forwards and draws in deterministic mode. Used by its thread only."""

    def __init__(self, arena: Arena, dims: Dims, *, rows: int, context: int) -> None:
        like = arena.k[0]
        self.rows = rows
        """Tokens of every forward, padding included."""
        self._arena = arena
        self._desk = Desk(
            keys=like.new_empty(dims.kv_heads, context, dims.head_dim),
            values=like.new_empty(dims.kv_heads, context, dims.head_dim),
            query=like.new_empty(dims.kv_heads, dims.heads // dims.kv_heads, dims.head_dim),
        )
        self._row = like.new_empty(1, dims.vocab)
        """The logits that are drawn from."""
        self._sampler = Sampler()

    def padded(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Values of the tokens, then zeros for the padding: [rows]."""
        out = np.zeros(self.rows, dtype=np.int64)
        out[: len(values)] = values
        return out

    def attention(self, works: Sequence[Work]) -> FixedAttention:
        """The attention plan of one padded forward over `works`."""
        return FixedAttention(self._arena, works, self._desk)

    def draw(self, logits: Tensor, emits: Sequence[tuple[int, tuple[Flight, ...]]]) -> Drawn:
        """The next token of every flight, from the row of its context. logits [rows, V]; emits: (row, its flights)."""
        parts = []
        for row, flights in emits:
            self._row.copy_(logits[row])
            parts.append(
                self._sampler.draw(
                    self._row,
                    uniforms=torch.tensor([f.uniform() for f in flights], dtype=torch.float64),
                    temperature=torch.tensor([flights[0].temperature]),
                    narrowing=[flights[0].narrowing],
                    rows=torch.zeros(len(flights), dtype=torch.int64),
                )
            )
        return Drawn(
            ids=[x for part in parts for x in part.ids],
            logprobs=[x for part in parts for x in part.logprobs],
            entropy=[x for part in parts for x in part.entropy],
            finite=[x for part in parts for x in part.finite],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Desk:
    """Where the keys and values of one sequence are laid side by side, and the query that looks at them."""

    keys: Tensor
    """[Hk, context, D]"""
    values: Tensor
    """[Hk, context, D]"""
    query: Tensor
    """[Hk, Hq / Hk, D]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stretch:
    """Consecutive tokens of one sequence in a forward."""

    row: int
    """Where the first stands in the forward."""
    count: int
    start: int
    """Position of the first."""
    before: tuple[tuple[Run, int], ...]
    """Earlier runs of the sequence and the entries of each."""
    own: tuple[Run, int]
    """The run of these tokens and its entries, these included."""


class FixedAttention:
    """The attention plan of one padded forward: one query at a time, over the first position + 1 entries of its own."""

    def __init__(self, arena: Arena, works: Sequence[Work], desk: Desk) -> None:
        self._arena = arena
        self._desk = desk
        self._places = write_places(arena, works)
        added: dict[int, int] = {}
        for work in works:
            added[id(work.run)] = added.get(id(work.run), 0) + len(work.ids)
        self._stretches: list[_Stretch] = []
        self._tokens = 0
        for work in works:
            self._stretches.append(
                _Stretch(
                    row=self._tokens,
                    count=len(work.ids),
                    start=work.start,
                    before=tuple((run, run.length + added.get(id(run), 0)) for run in work.before),
                    own=(work.run, work.run.length + len(work.ids)),
                )
            )
            self._tokens += len(work.ids)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write the new entries, then attend. q [1, Hq, T, D]; k, v [1, Hk, T, D]; returns [1, T, Hq, D], padding 0."""
        dim, new = q.shape[-1], self._tokens
        self._arena.k[layer].index_copy_(0, self._places, k[0, :, :new].transpose(0, 1).reshape(-1, dim))
        self._arena.v[layer].index_copy_(0, self._places, v[0, :, :new].transpose(0, 1).reshape(-1, dim))
        out = q.new_zeros(1, q.shape[2], q.shape[1], dim)
        queries = (q[0] * scale).transpose(0, 1)  # [T, Hq, D]
        laid: tuple[tuple[Run, int], ...] | None = None
        for stretch in self._stretches:
            if stretch.before != laid:  # siblings follow each other: what they share lies there already
                self._lay(layer, stretch.before, at=0)
                laid = stretch.before
            length = stretch.own[1]
            self._lay(layer, (stretch.own,), at=stretch.start + stretch.count - length)
            for i in range(stretch.count):
                row = stretch.row + i
                out[0, row] = self._look(queries[row], seen=stretch.start + i + 1)
        return out

    def _lay(self, layer: int, runs: Sequence[tuple[Run, int]], *, at: int) -> None:
        """Copy the entries of these runs to the desk, from position `at` on."""
        for run, length in runs:
            keys, values = self._arena.entries(layer, run, length)
            self._desk.keys[:, at : at + length] = keys
            self._desk.values[:, at : at + length] = values
            at += length

    def _look(self, query: Tensor, *, seen: int) -> Tensor:
        """What one scaled query [Hq, D] finds in the first `seen` entries on the desk: [Hq, D]."""
        desk = self._desk
        desk.query.copy_(query.view(desk.query.shape))
        weights = torch.bmm(desk.query, desk.keys[:, :seen].transpose(1, 2)).softmax(-1)  # [Hk, Hq / Hk, seen]
        return torch.bmm(weights, desk.values[:, :seen]).view(query.shape)


class _Apart:
    """Every token for itself, with its query, key and value in what comes out: what is left is what rows share."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[1, T, Hq, D]"""
        return (q + (k + v).repeat_interleave(q.shape[1] // k.shape[1], 1)).transpose(1, 2)


def prove(policy: Policy, rows: int) -> None:
    """Show that a row keeps its bits wherever it stands and whatever stands beside it, in forwards of `rows` rows.

    Blocking; takes the gate for reading. Raises ModelError when it does not.
    """
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(policy.dims.vocab, (rows,), generator=random)
    pos = torch.randint(policy.dims.context, (rows,), generator=random)
    with policy.gate.read("proof of fixed shapes"):
        wanted = _results(policy, ids, pos)
        for _ in range(ORDERS):
            order = torch.randperm(rows, generator=random)
            _require(policy, rows, wanted[order], _results(policy, ids[order], pos[order]))
        for kept in (torch.arange(rows) < rows // 2, torch.arange(rows) >= rows // 2):
            found = _results(policy, ids * kept, pos * kept)
            _require(policy, rows, wanted[kept], found[kept])


def _results(policy: Policy, ids: Tensor, pos: Tensor) -> Tensor:
    """Last hidden states and logits of tokens that do not see each other: [rows, hidden + V]."""
    device = next(policy.module.parameters()).device

    def forward() -> Tensor:
        with torch.inference_mode():
            hidden = policy.hidden(ids.to(device), pos.to(device), _Apart())
            return torch.cat([hidden, policy.logits(hidden)], 1).cpu()

    return compute.run(forward)


def _require(policy: Policy, rows: int, wanted: Tensor, found: Tensor) -> None:
    if not torch.equal(wanted, found):
        raise ModelError(
            f"model `{policy.name}`: in forwards of {rows} rows a row's bits depend on its place or on its neighbours "
            "on this machine, so engine.deterministic cannot hold; set engine.rows=1 or other threads"
        )
