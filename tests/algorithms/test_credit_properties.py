"""Invariants 2 to 5 for every rule, on random forests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.algorithms.aggregation import AGGREGATIONS
from treadle.algorithms.credit import CreditRule, NodeCredit, PathCredit, TokenCredit
from treadle.algorithms.rules import RULES
from treadle.algorithms.shared import SHARED, First
from treadle.testing import check_credit
from treadle.testing.credit_kit import EDITS, Trial
from treadle.trajectory.forest import Forest

SET: dict[str, dict[str, object]] = {
    "dapo": {"longest": 9, "margin": 6}, "graph": {"success": 0.3}, "mt_grpo": {"allow_unpaid": True},
    "reinforce_pp": {"beta": 0.1, "gamma": 0.9}, "igpo": {"gamma": 0.9}, "gae": {"gamma": 0.9},
    "turn_gae": {"gamma": 0.9},
}
"""Settings with which every part of a rule is at work."""
ITEMS = {
    "item 4": ["splitting observations", "inserting tokens of the world", "adding context breaks"],
    "item 5": ["cutting actions in two"],
    "item 6": ["putting rewards on observations"],
    "item 7": ["permuting siblings"],
    "item 8": ["a rollout lost to the machinery"],
}
"""The acceptance items of the design that concern rules, as edits that may change nothing."""


def rule_of(name: str) -> CreditRule:
    return RULES[name](**SET.get(name, {}))


def trial_of(name: str, **more: object) -> Trial:
    return Trial(nonnegative=name == "max_rl", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(RULES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), how=st.sampled_from(sorted(AGGREGATIONS)))
def test_credit_depends_on_what_happened_and_not_on_how_it_is_stored(name: str, seed: int, how: str):
    settings_ = {"constant": 64.0} if how == "seq_sum_const" else {}
    trial = trial_of(name, aggregation=AGGREGATIONS[how](**settings_))
    assert check_credit(rule_of(name), trial=trial, cases=1, seed=seed) is None


@pytest.mark.parametrize("item", sorted(ITEMS))
@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_passes_the_acceptance_items(name: str, item: str):
    assert check_credit(rule_of(name), trial=trial_of(name, edits=ITEMS[item]), cases=6, seed=17) is None


def test_the_acceptance_items_are_all_edits_of_the_kit():
    assert sorted(what for edits in ITEMS.values() for what in edits) == sorted(EDITS)


@pytest.mark.parametrize("shared", ["mean", "node", "path_sum"])
@pytest.mark.parametrize("name", ["grpo", "treerl", "gae"])
def test_what_shared_segments_get_does_not_depend_on_how_they_are_stored(name: str, shared: str):
    assert check_credit(rule_of(name), trial=trial_of(name, shared=SHARED[shared]()), cases=6) is None


def test_the_first_branch_only_depends_on_which_one_is_first():
    others = [what for what in EDITS if what != "permuting siblings"]
    assert check_credit(rule_of("grpo"), trial=trial_of("grpo", shared=First(), edits=others)) is None
    with pytest.raises(AssertionError, match="permuting siblings changed token"):
        check_credit(rule_of("grpo"), trial=trial_of("grpo", shared=First(), edits=["permuting siblings"]))


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


class ReadsOtherValues(Wrong):
    needs: ClassVar[frozenset[str]] = frozenset({"value"})

    def __call__(self, forest: Forest) -> TokenCredit:
        return TokenCredit(advantage=np.roll(forest.note("value"), -1))


class CreditsByPlace(Wrong):
    def __call__(self, forest: Forest) -> TokenCredit:
        return TokenCredit(advantage=np.arange(forest.tokens, dtype=float))


class LearnsByRow(Wrong):
    def __call__(self, forest: Forest) -> TokenCredit:
        return TokenCredit(advantage=np.zeros(forest.tokens), returns=forest.spread(forest.length.astype(float)))


class SaysOtherwise(Wrong):
    gives: ClassVar = "segment"

    def __call__(self, forest: Forest) -> PathCredit:
        return PathCredit(advantage=np.zeros(len(forest.rollouts)))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (CountsRows(), "changed token"), (ReadsTurns(), "changed token"), (ScansContext(), "changed token"),
        (MixesGroups(), "leaving out another group"), (NotFinite(), "finite"), (ReadsOtherValues(), "finite"),
        (CreditsByPlace(), "changed token"), (LearnsByRow(), "cutting actions in two changed token"),
        (SaysOtherwise(), "it says that it gives 'segment', but its credit is 'rollout'"),
    ],
)
def test_the_kit_catches_a_rule_that_breaks_an_invariant(wrong: Wrong, why: str):
    with pytest.raises(AssertionError, match=why):
        check_credit(wrong)  # type: ignore[arg-type]
