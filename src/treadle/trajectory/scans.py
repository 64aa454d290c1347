"""Scans over a tree whose rows stand parents first: one pass, in the order of the rows or against it.

Trees of rollouts are wide and a dozen rows deep, or a few chains that are thousands of rows deep. A pass over plain
Python numbers costs the same for both, some tens of nanoseconds a row, where work by levels of depth costs a dozen
array operations per level. The order of every sum is fixed by the order of the rows, so equal forests give equal bits.

`after` is the predecessor's row, -1 for roots; `children` how often a row is gone on from, endings included, >= 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


def up(after: Sequence[int], x: Column) -> Column:
    """[N] sum of x over each row's subtree, itself included."""
    out = _numbers(x)
    for i in range(len(out) - 1, -1, -1):
        p = after[i]
        if p >= 0:
            out[p] += out[i]
    return np.array(out, dtype=np.float64)


def down(after: Sequence[int], x: Column) -> Column:
    """[N] sum of x from the root down to each row, itself included."""
    out = _numbers(x)
    for i, p in enumerate(after):
        if p >= 0:
            out[i] += out[p]
    return np.array(out, dtype=np.float64)


def mean(after: Sequence[int], children: Sequence[float], ends: Column) -> Column:
    """[N] mean over each row's children's values; `ends` [N] is the sum of what the endings at a row are worth."""
    out = _numbers(ends)
    for i in range(len(out) - 1, -1, -1):
        value = out[i] = out[i] / children[i]
        p = after[i]
        if p >= 0:
            out[p] += value
    return np.array(out, dtype=np.float64)


def walk(after: Sequence[int], children: Sequence[float], start: Column) -> Column:
    """[N] chance that a uniform random walk comes by; `start` [N] is that of the roots."""
    out = _numbers(start)
    for i, p in enumerate(after):
        if p >= 0:
            out[i] = out[p] / children[p]
    return np.array(out, dtype=np.float64)


def fold(
    after: Sequence[int], children: Sequence[float], gain: Column, *, factor: Column, ends: Column
) -> tuple[Column, Column]:
    """value = gain + factor * rest, rest = (ends + sum of the children's values) / children; both [N]."""
    gains, factors, rests = _numbers(gain), _numbers(factor), _numbers(ends)
    out = gains  # each is read once, where it is written
    for i in range(len(out) - 1, -1, -1):
        rest = rests[i] = rests[i] / children[i]
        value = out[i] = gains[i] + factors[i] * rest
        p = after[i]
        if p >= 0:
            rests[p] += value
    return np.array(out, dtype=np.float64), np.array(rests, dtype=np.float64)


def _numbers(column: Column) -> list[float]:
    numbers: list[float] = np.asarray(column, dtype=np.float64).tolist()
    return numbers
