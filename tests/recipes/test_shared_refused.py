"""What rollouts make of a start that they share is refused when the recipe is made, not by the first update."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from treadle import Algorithm, ConfigError, Forest, NodeCredit, SeqSumConst
from treadle.algorithms.credit import CreditRule, assign
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.rules import RULES
from treadle.algorithms.shared import SHARED, First, Mean
from treadle.recipes.shell import shell
from treadle.testing.forests import action, grow, observation
from treadle.testing.planted import plant

CONSTANT = SeqSumConst(constant=8.0)
WEIGHS = {"imitation", "tree_pg"}
PER_ROLLOUT = {
    "dapo", "dr_grpo", "grpo", "max_rl", "opo", "reinforce_pp_baseline", "rloo", "tree_grpo"
}
SET: dict[str, dict[str, object]] = {"dapo": {"longest": 9, "margin": 6}, "mt_grpo": {"allow_unpaid": True}}


def rule_of(name: str) -> CreditRule:
    return RULES[name](**SET.get(name, {}))


def forked(needs: frozenset[str]) -> Forest:
    """A start that two rollouts share, and a third rollout; every note that a rule may need."""
    after = observation("e", 1, action("a2", 2, reward=1.0, state_key="s"), action("a3", 1, state_key="s"))
    grown = grow(observation("p", 2, action("a1", 2, after), action("b1", 2)))
    return plant(Forest.of([grown.group]), needs)


def at_once(rule: CreditRule, shared: str) -> str:
    """What a recipe says of the two; empty when it takes them."""
    try:
        Algorithm(rule=rule, shared=SHARED[shared](), aggregation=CONSTANT)
    except ConfigError as error:
        return str(error)
    return ""


def at_the_update(rule: CreditRule, shared: str) -> str:
    """What the first update says of them; empty when it takes them."""
    try:
        assign(forked(rule.needs), rule, CONSTANT, shared=SHARED[shared]())
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("name", RULES)
def test_a_shipped_rule_is_taken_at_both_places_or_refused_at_the_first(name: str, shared: str):
    early, late = at_once(rule_of(name), shared), at_the_update(rule_of(name), shared)
    expected = (shared == "first" and name not in PER_ROLLOUT) or (shared == "mean" and name in WEIGHS)
    assert bool(early) is expected
    assert bool(late) is expected
    assert early == late.replace("a rule with", f"algorithm.rule={name} with", 1)
    assert "\n" not in early


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"algorithm.rule": "tree_pg", "algorithm.aggregation": "seq_sum_const", "algorithm.shared": "mean"},
            ("algorithm.shared=mean: got algorithm.rule=tree_pg", "weight of its own", "set algorithm.shared=path_sum"),
        ),
        (
            {"algorithm.rule": "tree_pg", "algorithm.aggregation": "seq_sum_const", "algorithm.shared": "first"},
            ("algorithm.shared=first: got algorithm.rule=tree_pg", "set algorithm.shared=path_sum"),
        ),
        (
            {"algorithm.rule": "treerl", "algorithm.shared": "first"},
            ("algorithm.shared=first: got algorithm.rule=treerl", "advantage per segment", "set algorithm.shared=mean"),
        ),
        (
            {"algorithm.rule": "gae", "algorithm.shared": "first"},
            ("algorithm.shared=first: got algorithm.rule=gae", "advantage per token", "set algorithm.shared=mean"),
        ),
    ],
)
def test_a_recipe_names_the_key_the_rule_and_the_way_out(changes: dict[str, object], words: tuple[str, ...]):
    with pytest.raises(ConfigError) as refused:
        shell().changed(changes)
    assert [word for word in words if word not in str(refused.value)] == []


class Weighing:
    """A rule of somebody's own, which weighs its segments and does not say so."""

    name: ClassVar[str] = "weighing"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar = "group"
    min_rollouts: ClassVar[int] = 1

    def __call__(self, forest: Forest) -> NodeCredit:
        return NodeCredit(advantage=np.ones(len(forest)), weight=forest.descent)


class SayingSo(Weighing):
    """The same, which says so."""

    gives: ClassVar = "weighed segment"


def test_a_rule_that_does_not_say_what_it_gives_is_refused_by_the_update():
    assert at_once(Weighing(), "mean") == ""
    assert at_the_update(Weighing(), "mean").startswith("algorithm.shared=mean: got a rule with a weight of its own")
    assert at_once(SayingSo(), "mean").startswith("algorithm.shared=mean: got algorithm.rule=weighing with a weight")
    assert (at_once(SayingSo(), "path_sum"), at_the_update(SayingSo(), "path_sum")) == ("", "")


def test_the_first_choice_that_a_refusal_names_is_one_that_is_taken():
    for name, shared in (("imitation", Mean()), ("tree_pg", First()), ("vine", First())):
        told = at_once(rule_of(name), shared.name)
        assert at_once(rule_of(name), told.rpartition("algorithm.shared=")[2]) == ""
    assert at_once(Imitation(), "path_sum") == ""
