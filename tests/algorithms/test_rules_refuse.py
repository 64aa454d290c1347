"""What a rule cannot judge it refuses in one line that says what to set; nothing that is missing becomes a zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import NodeCredit, PathCredit, assign
from treadle.algorithms.mt_grpo import MtGrpo
from treadle.algorithms.reinforce_pp import ReinforcePP
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError
from treadle.testing.forests import action, grow, observation
from treadle.testing.planted import plant
from treadle.trajectory.forest import Forest

LATER = observation("e", 1, action("a2", 1, reward=1.0))
PLAIN = observation("p", 1, action("a1", 2, LATER), action("b1", 1))


def plain() -> Forest:
    return Forest.of([grow(PLAIN).group])


@pytest.mark.parametrize(
    ("name", "column"), [("gae", "value"), ("turn_gae", "value"), ("igpo", "answer_prob"), ("reinforce_pp", "ref")]
)
def test_a_missing_column_is_named_with_what_to_set(name: str, column: str):
    rule = ReinforcePP(beta=0.1) if name == "reinforce_pp" else RULES[name]()
    with pytest.raises(ValueError, match=rf"^algorithm.rule={name}: got .*, expected '{column}' on every .*; \w+.*$"):
        rule(plain())


@pytest.mark.parametrize(("name", "column"), [("gae", "value"), ("turn_gae", "value"), ("igpo", "answer_prob")])
def test_a_column_with_holes_is_refused(name: str, column: str):
    forest = plant(plain(), {column})
    holed = replace(forest, notes={column: np.full(forest.tokens, np.nan)})
    with pytest.raises(ValueError, match=rf"algorithm.rule={name}: got \d of \d tokens without '{column}'"):
        RULES[name]()(holed)


def test_a_state_without_a_probe_is_refused():
    with pytest.raises(ValueError, match=r"algorithm.rule=vine: got 3 of 3 actions .* a probe .*branching=probe"):
        RULES["vine"]()(plain())


@pytest.mark.parametrize("name", ["gigpo", "graph"])
def test_a_later_action_without_a_state_key_is_refused(name: str):
    with pytest.raises(ValueError, match=rf"algorithm.rule={name}: got 1 of 3 actions without a state key.*state_key"):
        RULES[name]()(plain())


def test_turns_that_nobody_paid_are_refused_unless_the_recipe_expects_it():
    with pytest.raises(ValueError, match=r"algorithm.rule=mt_grpo: got no reward on any of 1 actions.*allow_unpaid"):
        RULES["mt_grpo"]()(plain())
    assert MtGrpo(allow_unpaid=True)(plain()).advantage.any()


def test_max_rl_refuses_a_negative_return():
    forest = Forest.of([grow(observation("p", 1, action("a", 1, reward=-0.5), action("b", 1))).group])
    with pytest.raises(ValueError, match=r"algorithm.rule=max_rl: got a return of -0.5, expected returns >= 0"):
        RULES["max_rl"]()(forest)


@pytest.mark.parametrize("name", sorted(RULES))
def test_rules_that_compare_drop_a_group_of_one_and_the_others_take_it(name: str):
    alone = {"gae", "turn_gae", "imitation", "reinforce_pp", "vine"}
    assert RULES[name]().min_rollouts == (1 if name in alone else 2)


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_update_without_rows_is_no_error(name: str):
    rule = RULES[name]()
    collapsed, denominator = assign(plant(Forest.of([]), rule.needs), rule, TokenMean())
    assert len(collapsed.mass) == 0
    assert denominator > 0


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("dapo", "eps", 0.0), ("dapo", "longest", 0), ("dapo", "margin", 0), ("max_rl", "eps", -1.0),
        ("reinforce_pp", "beta", -0.1), ("reinforce_pp", "gamma", 0.0), ("gae", "gamma", 1.5), ("gae", "lam", -0.1),
        ("turn_gae", "gamma", 0.0), ("turn_gae", "lam", 2.0), ("mt_grpo", "eps", 0.0), ("mt_grpo", "turn", np.inf),
        ("gigpo", "omega", -1.0), ("gigpo", "gamma", 2.0), ("gigpo", "eps", 0.0), ("igpo", "gamma", 0.0),
        ("igpo", "eps", 0.0), ("tree_grpo", "eps", 0.0), ("treerpo", "eps", 0.0), ("graph", "success", np.nan),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, key: str, value: float):
    with pytest.raises(ConfigError, match=rf"^{name}\.{key}: got .*, expected "):
        RULES[name](**{key: value})


def test_a_margin_wider_than_the_limit_is_refused():
    with pytest.raises(ConfigError, match=r"dapo.margin: got 9, expected 1 .. dapo.longest=8"):
        RULES["dapo"](longest=8, margin=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A rule of somebody's own that gives what it is told to."""

    name: ClassVar[str] = "own"
    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Literal["group", "batch"]] = "group"
    min_rollouts: ClassVar[int] = 1
    gives: Any

    def __call__(self, forest: Forest) -> Any:
        return self.gives(forest)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda forest: {}["x"], r"^algorithm\.rule=own: KeyError: 'x' \(test_rules_refuse\.py, line \d+\)$"),
        (lambda forest: forest.returns, r"^algorithm\.rule=own: got ndarray, expected PathCredit, NodeCredit or Token"),
        (lambda forest: PathCredit(advantage=np.ones(9)), r"^algorithm\.rule=own: advantage: got shape \(9,\), expec"),
        (lambda forest: NodeCredit(advantage=np.full(len(forest), np.nan)), r"^algorithm\.rule=own: .* on 3 of 3 act"),
        (lambda forest: PathCredit(advantage=np.array([1.0, np.inf])), r"^algorithm\.rule=own: .* on 1 of 3 actions"),
    ],
)
def test_a_rule_of_ones_own_that_is_wrong_is_named_in_one_line(gives: Any, said: str):
    with pytest.raises(ValueError, match=said):
        assign(plain(), Own(gives=gives), TokenMean())


def test_what_a_rule_says_of_rows_that_are_no_actions_is_ignored():
    forest = plain()
    found, _ = assign(
        forest, Own(gives=lambda f: NodeCredit(advantage=np.where(f.action, 1.0, np.nan))), TokenMean()
    )
    assert found.pos[forest.action].tolist() == [1.0, 1.0, 1.0]
