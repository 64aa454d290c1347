"""Notes and probes for a forest of the tests: numbers that follow the tokens, whatever rows those are in.

What stands on an action token depends on its id alone, what stands on the world's tokens on the last action token
before them in time. So a forest that tells the same story in other rows has the same numbers at the same places. A
value stands on action tokens only: no rule may read one between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from treadle.trajectory.forest import Column, Forest, Index, Mask


def plant(forest: Forest, needs: Collection[str] = ()) -> Forest:
    """The forest with the notes that a rule `needs`, and a probe behind every row. Raises KeyError for other notes."""
    said = np.zeros(len(forest), dtype=np.int64)
    for row, before in enumerate(forest.after.tolist()):
        if forest.action[row]:
            said[row] = int(forest.segments[row].ids[-1])
        elif before >= 0:
            said[row] = said[before]
    acts = np.repeat(forest.action, forest.length)
    tokens = forest.spread(said.astype(np.float64)).astype(np.int64)
    behind = tokens.copy()
    if forest.tokens:
        tokens[acts] = np.concatenate([s.ids for s in forest.segments])[acts]
    names = {*needs, *({"value_after"} if "value" in needs else ())}
    notes = {name: _KINDS[name](tokens, behind, acts) for name in sorted(names)}
    return replace(forest, notes={**forest.notes, **notes}, probed=2 * _unit(said, salt=5) - 1)


def _unit(number: Index, *, salt: int) -> Column:
    """A number in 0 .. 1 that follows another one and looks random."""
    mixed = (number.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((mixed >> np.uint64(11)).astype(np.float64) / 2.0**53, dtype=np.float64)


_KINDS: Mapping[str, Callable[[Index, Index, Mask], Column]] = {
    "value": lambda token, behind, acts: np.where(acts, 2 * _unit(token, salt=1) - 1, np.nan),
    "value_after": lambda token, behind, acts: 2 * _unit(token, salt=2) - 1,
    "ref": lambda token, behind, acts: np.where(acts, -3 * _unit(token, salt=3), np.nan),
    "prox": lambda token, behind, acts: np.where(acts, -3 * _unit(token, salt=4), np.nan),
    "entropy": lambda token, behind, acts: np.where(acts, _unit(token, salt=6), np.nan),
    "answer_prob": lambda token, behind, acts: np.log(0.05 + 0.9 * _unit(behind, salt=7)),
}
"""Note to its numbers: from the id a token stands for, its segment's last one, and whether an action has it."""
