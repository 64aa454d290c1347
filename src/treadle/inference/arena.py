"""The KV arena: where keys and values of all sequences live, and how a piece of it is found.

Per layer there is one flat store for keys and one for values, `[tokens * Hk, D]`, allocated once and zeroed lazily by
the operating system. It is cut into equal blocks. A block in use belongs to one *class*, a pair (row capacity C, shared
or own), and is cut into rows of C tokens, each laid out `[Hk, C, D]`. So for every class the whole store can be read
as `[rows, Hk, C, D]`, rows of one class in neighbouring blocks form one strided tensor, and attention over many
sequences is one batched matrix product with no copy. Rows and blocks are taken lowest first, which keeps them adjacent.

A `Run` is a row, or a part of one, with a length: consecutive tokens of one sequence, with the policy version of every
entry. `split` cuts a run in two where it lies; the row is free when all its parts were given back. A run that outgrows
its place moves to a larger row: each entry is copied less than once on average. An empty block goes back to the common
pool, so nothing fragments. The arena knows no rollouts and never evicts: `take` says None. Used pages stay the
process's own until `trim` gives those of unused blocks back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from treadle.core import compute
from treadle.core.memory import drop_pages
from treadle.inference.config import row_capacity

ClassKey = tuple[int, bool]
"""Row capacity in tokens; True for runs that several sequences attend to."""
ALIGNMENT = 64
"""Bytes: one cache line, one vector register."""


@dataclass(slots=True)
class Run:
    """Consecutive KV entries of one sequence, in one row."""

    row: int
    """Index among the rows of capacity `capacity` that the whole arena would hold."""
    capacity: int
    shared: bool
    limit: int
    """Most entries: to the end of its row, or to the next part of it."""
    offset: int = 0
    """Place of its first entry in the row."""
    length: int = 0
    """Entries written."""
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Run-length policy versions of the entries; counts sum to `length`."""

    def append(self, count: int, version: int) -> None:
        """Note that `count` entries were written under `version`."""
        self.length += count
        if self.versions and self.versions[-1][0] == version:
            version, before = self.versions.pop()
            count += before
        self.versions.append((version, count))

    def truncate(self, length: int) -> None:
        """Forget the entries from `length` on."""
        assert 0 <= length <= self.length
        surplus = self.length - length
        while surplus:
            version, count = self.versions.pop()
            if count > surplus:
                self.versions.append((version, count - surplus))
            surplus -= min(count, surplus)
        self.length = length

    @property
    def oldest(self) -> int | None:
        """Oldest version among the entries; None when there are none."""
        return min((v for v, _ in self.versions), default=None)

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it lies: runs that one product can read together stand beside each other in this order."""
        return self.capacity, self.offset, self.row

    def head(self, length: int) -> list[tuple[int, int]]:
        """Run-length versions of the first `length` entries, or of those that there are."""
        found = []
        for version, count in self.versions:
            if length > 0:
                found.append((version, min(count, length)))
                length -= count
        return found


class Arena:
    """The store and its free rows. All methods are called by the engine's worker thread."""

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, tokens: int, block_tokens: int, like: Tensor
    ) -> None:
        self.layers = layers
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.block_tokens = block_tokens
        self.blocks = tokens // block_tokens
        shape = (self.blocks * block_tokens * kv_heads, head_dim)
        self.k: list[Tensor] = [_zeros(shape, like) for _ in range(layers)]
        self.v: list[Tensor] = [_zeros(shape, like) for _ in range(layers)]
        self.copied_tokens = 0
        """Entries copied by moves and forks since the start."""
        self._free_blocks = set(range(self.blocks))
        self._touched: set[int] = set()
        """Blocks whose pages may be in memory."""
        self._free_rows: dict[ClassKey, set[int]] = {}
        self._parts: dict[tuple[int, int], int] = {}
        """Runs on each row in use, by (capacity, row)."""
        self._used: dict[tuple[ClassKey, int], int] = {}
        """Rows in use of each block that has a class."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one KV entry over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.k[0].element_size()

    @property
    def free_tokens(self) -> int:
        """Tokens in blocks without a class."""
        return len(self._free_blocks) * self.block_tokens

    def rows(self, layer: int, capacity: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer as rows of `capacity`: two views [rows * Hk, C, D]."""
        shape = (-1, capacity, self.head_dim)
        return self.k[layer].view(shape), self.v[layer].view(shape)

    def take(self, tokens: int, *, shared: bool) -> Run | None:
        """An empty run in a row that holds `tokens`; None when no row and no block is free."""
        capacity = row_capacity(tokens)
        key = (capacity, shared)
        free = self._free_rows.setdefault(key, set())
        per_block = self.block_tokens // capacity
        if not free:
            if not self._free_blocks:
                return None
            block = min(self._free_blocks)
            self._free_blocks.remove(block)
            self._touched.add(block)
            free.update(range(block * per_block, (block + 1) * per_block))
            self._used[key, block] = 0
        row = min(free)
        free.remove(row)
        self._used[key, row // per_block] += 1
        self._parts[capacity, row] = 1
        return Run(row=row, capacity=capacity, shared=shared, limit=capacity)

    def give(self, run: Run) -> None:
        """Take a run's place back, and its row with the last part of it."""
        self._parts[run.capacity, run.row] -= 1
        if self._parts[run.capacity, run.row]:
            return
        del self._parts[run.capacity, run.row]
        key = (run.capacity, run.shared)
        per_block = self.block_tokens // run.capacity
        block = run.row // per_block
        self._free_rows[key].add(run.row)
        self._used[key, block] -= 1
        if self._used[key, block] == 0:
            del self._used[key, block]
            self._free_rows[key].difference_update(range(block * per_block, (block + 1) * per_block))
            self._free_blocks.add(block)

    def trim(self) -> int:
        """Give the pages of unused blocks back to the system; they read as zeros again. The bytes given back."""
        unused = self._touched & self._free_blocks
        self._touched -= unused
        if self.k[0].device.type != "cpu":
            return 0
        size = self.block_tokens * self.kv_heads * self.head_dim * self.k[0].element_size()
        places = [store.data_ptr() + block * size for store in (*self.k, *self.v) for block in unused]
        return sum(drop_pages(place, size) for place in places)

    def move(self, run: Run, tokens: int) -> bool:
        """See that `run` has place for `tokens`, in another row if need be. False when there is no room."""
        if tokens <= run.limit:
            return True
        fresh = self.take(tokens, shared=run.shared)
        if fresh is None:
            return False
        self.copy(run, fresh, run.length)
        self.give(run)
        run.row, run.capacity, run.limit, run.offset = fresh.row, fresh.capacity, fresh.limit, 0
        return True

    def split(self, run: Run, at: int) -> Run:
        """Cut `run` in two where it lies: a run of its first `at` places comes out, `run` keeps the others."""
        head = Run(row=run.row, capacity=run.capacity, shared=run.shared, limit=at, offset=run.offset)
        for version, count in run.head(at):
            head.append(count, version)
        self._parts[run.capacity, run.row] += 1
        run.versions.reverse()
        run.truncate(run.length - head.length)
        run.versions.reverse()
        run.offset += at
        run.limit -= at
        return head

    def copy(self, source: Run, target: Run, length: int) -> None:
        """Write the first `length` entries of `source` to the empty run `target`."""
        if not length:
            return
        for layer in range(self.layers):
            for old, new in zip(self.entries(layer, source, length), self.entries(layer, target, length), strict=True):
                new.copy_(old)
        for version, count in source.head(length):
            target.append(count, version)
        self.copied_tokens += length

    def scrub(self, run: Run) -> None:
        """Zero a run's place: after a failed forward it may hold values that are not finite."""

        def zero() -> None:
            for layer in range(self.layers):
                for store in self.entries(layer, run, run.limit):
                    store.zero_()

        compute.run(zero)

    def entries(self, layer: int, run: Run, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a run's first `length` entries: two views [Hk, length, D]."""
        heads = slice(run.row * self.kv_heads, (run.row + 1) * self.kv_heads)
        keys, values = self.rows(layer, run.capacity)
        places = slice(run.offset, run.offset + length)
        return keys[heads, places], values[heads, places]


def _zeros(shape: tuple[int, int], like: Tensor) -> Tensor:
    """Zeros of `like`'s type and place. On the CPU no page is touched before it is used.

    Zeros, not whatever is there: entries behind a run's length meet weight 0 in attention, and 0 * nan is nan.
    """
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    size = shape[0] * shape[1] * like.element_size()
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)  # calloc; torch.zeros would write every page
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + size]).view(like.dtype).view(shape)
