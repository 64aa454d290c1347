"""Branching in a recipe: by name, with its own keys; what contradicts is one line."""

from __future__ import annotations

import pytest
from words_recipe import words

from treadle.agents.branch_fixed import FixedTree
from treadle.algorithms.group_baseline import Grpo
from treadle.core.errors import ConfigError


def test_nothing_branches_unless_a_recipe_says_so():
    flat = words().flat()
    assert flat["branching"] == "none"
    assert flat["branching.tokens_per_group"] is None


def test_a_policy_is_chosen_by_name_and_its_keys_are_below_it():
    made = words().changed({"branching": "fixed", "branching.widths": "2,3", "branching.tokens_per_group": "9000"})
    assert made.branching == FixedTree(widths=(2, 3), tokens_per_group=9000)
    assert made.changed({}).flat()["branching.widths"] == [2, 3]


def test_a_key_that_the_policy_does_not_have_is_named():
    with pytest.raises(ConfigError, match=r"unknown key 'branching\.widths'"):
        words().changed({"branching": "probe", "branching.widths": "2"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"branching": "nothing"}, r"branching: unknown name 'nothing'.*none, fixed, entropy, expand"),
        ({"branching": "fixed", "pipeline.spare_rollouts": 1}, r"pipeline\.spare_rollouts=1 contradicts branching=fix"),
        ({"branching.tokens_per_group": 100, "pipeline.spare_rollouts": 1}, r"cannot pay for 4 rollouts"),
        ({"branching": "probe", "branching.tokens_per_group": 5}, r"branching\.tokens_per_group=5 cannot pay"),
        ({"branching": "expand"}, r"branching\.turns=none contradicts limits\.max_turns=none"),
        ({"branching": "expand", "branching.turns": 0}, r"branching\.turns: got 0"),
        ({"branching": "probe", "pipeline.group_size": 1}, r"pipeline\.group_size=1 contradicts algorithm\.rule"),
        ({"branching": "entropy", "branching.quantile": 0.8, "deterministic": True}, r"branching\.quantile=0\.8 contr"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, said):
    with pytest.raises(ConfigError, match=said) as caught:
        words(rule=Grpo()).changed(changes)
    assert "\n" not in str(caught.value)


def test_one_chain_is_enough_where_it_forks():
    made = words(rule=Grpo()).changed({"branching": "fixed", "pipeline.group_size": 1})
    assert made.branching.rollouts(1) == 2
