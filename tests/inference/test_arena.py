"""Rows, blocks and runs of the KV arena."""

from __future__ import annotations

import mmap
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle.inference.arena import Arena, Run
from treadle.inference.config import row_capacity
from treadle.models import Dims


def make(blocks: int = 4) -> Arena:
    return Arena(layers=2, kv_heads=2, head_dim=3, tokens=blocks * 1024, block_tokens=1024, like=torch.zeros(1))


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 64), (64, 64), (65, 128), (1000, 1024), (1024, 1024)])
def test_rows_come_in_powers_of_two(tokens: int, capacity: int) -> None:
    assert row_capacity(tokens) == capacity


def test_rows_of_one_class_are_neighbours() -> None:
    arena = make()
    rows = [run.row for run in (arena.take(100, shared=False) for _ in range(20)) if run is not None]
    assert rows == list(range(20))


def test_shared_and_own_rows_never_mix_in_a_block() -> None:
    arena = make()
    own, shared = arena.take(64, shared=False), arena.take(64, shared=True)
    assert own is not None
    assert shared is not None
    assert own.row // 16 != shared.row // 16


def test_a_full_arena_says_none() -> None:
    arena = make(1)
    assert arena.take(1024, shared=False) is not None
    assert arena.take(1, shared=False) is None


def test_a_run_that_moves_keeps_its_entries() -> None:
    arena = make()
    run = arena.take(64, shared=False)
    assert run is not None
    run.append(64, 0)
    keys, values = arena.rows(1, 64)
    keys[run.row * 2 : run.row * 2 + 2] = torch.arange(64.0)[:, None]
    values[run.row * 2 : run.row * 2 + 2] = -torch.arange(64.0)[:, None]
    assert arena.move(run, 65)
    keys, values = arena.rows(1, 128)
    assert run.capacity == 128
    assert keys[run.row * 2 + 1, :64, 0].tolist() == list(range(64))
    assert values[run.row * 2, :64, 2].tolist() == [-x for x in range(64)]
    assert arena.copied_tokens == 64


def test_a_run_is_cut_where_it_lies_and_its_row_is_free_with_the_last_part() -> None:
    arena = make()
    run = arena.take(100, shared=False)
    assert run is not None
    run.append(40, 0)
    run.append(30, 1)
    keys, _ = arena.entries(0, run, 70)
    keys[:] = torch.arange(70.0)[:, None]
    head = arena.split(run, 50)
    assert (head.versions, head.limit, run.versions, run.limit) == ([(0, 40), (1, 10)], 50, [(1, 20)], 78)
    assert arena.entries(0, run, 20)[0][1, :, 0].tolist() == list(range(50, 70))
    assert arena.move(run, 78)
    assert arena.copied_tokens == 0
    assert arena.move(run, 79)  # only its own entries move
    assert (arena.copied_tokens, run.row, run.offset) == (20, 1, 0)
    arena.give(head)
    arena.give(run)
    assert arena.free_tokens == 4 * 1024


def test_truncating_cuts_the_version_runs() -> None:
    run = Run(row=0, capacity=64, shared=False, limit=64)
    run.append(3, 0)
    run.append(4, 1)
    run.append(2, 1)
    run.truncate(5)
    assert (run.length, run.versions, run.oldest) == (5, [(0, 3), (1, 2)], 0)
    run.truncate(0)
    assert (run.versions, run.oldest) == ([], None)


@given(st.integers(0, 2**32))
def test_whatever_is_taken_and_given_back_no_two_runs_overlap_and_nothing_is_lost(seed: int) -> None:
    arena, rng, held = make(6), random.Random(seed), []
    for _ in range(60):
        if held and rng.random() < 0.45:
            arena.give(held.pop(rng.randrange(len(held))))
        elif held and rng.random() < 0.3:
            arena.move(rng.choice(held), rng.randint(1, 1024))
        else:
            run = arena.take(rng.randint(1, 1024), shared=rng.random() < 0.3)
            held += [] if run is None else [run]
        tokens = [t for r in held for t in range(r.row * r.capacity, (r.row + 1) * r.capacity)]
        assert len(tokens) == len(set(tokens))
    for run in held:
        arena.give(run)
    assert arena.free_tokens == 6 * 1024


def test_pages_of_unused_blocks_go_back_and_read_as_zeros_again() -> None:
    arena = Arena(layers=2, kv_heads=2, head_dim=16, tokens=4096, block_tokens=1024, like=torch.zeros(1))
    gone, kept = arena.take(1024, shared=False), arena.take(1024, shared=True)
    assert gone is not None
    assert kept is not None
    for store in (*arena.k, *arena.v):
        store.fill_(1.0)
    arena.give(gone)
    freed = arena.trim()
    assert freed in (0, 4 * (1024 * 2 * 16 * 4 - mmap.PAGESIZE), 4 * 1024 * 2 * 16 * 4)  # stores begin within a page
    assert arena.trim() == 0
    for layer in range(2):
        for rows in arena.rows(layer, 1024):
            assert bool((rows[2 * kept.row : 2 * kept.row + 2] == 1).all())
            assert bool((rows[2 * gone.row : 2 * gone.row + 2] == 0).any()) == bool(freed)


def test_an_entry_has_the_bytes_that_the_models_shape_gives() -> None:
    dims = Dims(layers=2, heads=4, kv_heads=2, head_dim=3, hidden=12, vocab=5, context=64)
    assert make().bytes_per_token == dims.kv_bytes(4) == 2 * 2 * 2 * 3 * 4
