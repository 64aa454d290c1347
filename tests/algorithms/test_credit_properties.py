"""Invariants 2 to 5 for every rule, on random forests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.aggregation import AGGREGATIONS
from treadle.algorithms.credit import NodeCredit, PathCredit
from treadle.algorithms.rules import RULES
from treadle.testing import check_credit
from treadle.trajectory.forest import Forest


@pytest.mark.parametrize("name", sorted(RULES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), how=st.sampled_from(sorted(AGGREGATIONS)))
def test_credit_depends_on_what_happened_and_not_on_how_it_is_stored(name: str, seed: int, how: str):
    settings_ = {"constant": 64.0} if how == "seq_sum_const" else {}
    checked = check_credit(RULES[name](), aggregation=AGGREGATIONS[how](**settings_), cases=1, seed=seed)
    assert checked is None


@dataclass(frozen=True)
class Wrong:
    """A rule to be caught."""

    name: ClassVar[str] = "wrong"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar = "group"
    min_rollouts: ClassVar[int] = 1


class CountsRows(Wrong):
    def __call__(self, forest: Forest) -> NodeCredit:
        return NodeCredit(advantage=forest.reward - forest.reward.sum() / len(forest))


class ReadsTurns(Wrong):
    def __call__(self, forest: Forest) -> NodeCredit:
        return NodeCredit(advantage=np.arange(len(forest), dtype=float))


class ScansContext(Wrong):
    def __call__(self, forest: Forest) -> NodeCredit:
        depth = np.zeros(len(forest))
        for i, parent in enumerate(forest.parent):
            depth[i] = 1.0 if parent < 0 else depth[parent] * 0.5
        return NodeCredit(advantage=depth)


class MixesGroups(Wrong):
    def __call__(self, forest: Forest) -> PathCredit:
        return PathCredit(advantage=forest.returns - forest.returns.mean())


class NotFinite(Wrong):
    def __call__(self, forest: Forest) -> PathCredit:
        return PathCredit(advantage=np.full(len(forest.rollouts), np.nan))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (CountsRows(), "changed token"), (ReadsTurns(), "changed token"), (ScansContext(), "changed token"),
        (MixesGroups(), "leaving out another group"), (NotFinite(), "finite"),
    ],
)
def test_the_kit_catches_a_rule_that_breaks_an_invariant(wrong: Wrong, why: str):
    with pytest.raises(AssertionError, match=why):
        check_credit(wrong)  # type: ignore[arg-type]
