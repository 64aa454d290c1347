"""Streams are names: number i depends on the name and i alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.seeds import Stream

PARTS = st.lists(st.integers(-5, 5) | st.text(max_size=4), max_size=4).map(tuple)


@given(path=PARTS, start=st.integers(0, 1000), count=st.integers(0, 40))
def test_for_all_slices_numbers_depend_on_the_index_alone(path: tuple[str | int, ...], start: int, count: int) -> None:
    stream = Stream(3, path)
    assert np.array_equal(stream.uniforms(start, count), stream.uniforms(0, start + count)[start:])


@given(path=PARTS, other=PARTS)
def test_for_all_names_different_names_give_different_keys(
    path: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    assert (Stream(1, path).key == Stream(1, other).key) == (Stream(1, path) == Stream(1, other))


def test_drawing_in_a_batch_changes_nothing() -> None:
    streams = [Stream(7).at("ticket", t).at("turn", 0) for t in range(8)]
    alone = [stream.uniform(5) for stream in streams]
    batch = [s.uniform(5) for s in reversed(streams)][::-1]
    assert alone == batch


def test_numbers_are_pinned_across_versions() -> None:
    stream = Stream(7).at("ticket", 3).at("turn", 0)
    assert stream.key == PINNED_KEY
    assert stream.uniforms(0, 3).tolist() == PINNED


def test_another_process_draws_the_same_numbers() -> None:
    code = "from treadle.core.seeds import Stream; print(Stream(7).at('ticket', 3).at('turn', 0).uniform(0).hex())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float.fromhex(told.stdout.strip()) == PINNED[0]


def test_a_text_is_not_the_number_it_spells() -> None:
    assert Stream(1).at("2").key != Stream(1).at(2).key


def test_joining_parts_is_not_nesting_them() -> None:
    assert Stream(1).at("a", "b").key == Stream(1).at("a").at("b").key
    assert Stream(1).at("ab").key != Stream(1).at("a", "b").key


def test_the_seed_changes_everything() -> None:
    assert Stream(1).at("x").uniform(0) != Stream(2).at("x").uniform(0)


def test_uniforms_lie_in_the_half_open_unit_interval_and_are_spread_evenly() -> None:
    numbers = Stream(0).at("many").uniforms(0, 20_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)
    assert np.histogram(numbers, bins=10, range=(0, 1))[0].min() > 1800


def test_generators_for_environments_start_from_the_name() -> None:
    first, second = Stream(5).at("env"), Stream(5).at("env")
    assert first.python().random() == second.python().random()
    assert first.numpy().integers(1 << 40) == second.numpy().integers(1 << 40)
    assert first.python().random() != first.at("x").python().random()


def test_streams_are_equal_by_name() -> None:
    assert Stream(1, ("a",)) == Stream(1).at("a")
    assert hash(Stream(1, ("a",))) == hash(Stream(1).at("a"))


PINNED_KEY = 280406593069409839437047176289252084124
PINNED = [0.5007918692214893, 0.2220555753199912, 0.6641055880115272]
