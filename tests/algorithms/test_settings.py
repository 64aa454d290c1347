"""Rules, losses and aggregations by name, and what their settings refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from treadle.algorithms.aggregation import AGGREGATIONS, SeqSumConst
from treadle.algorithms.corrections import CORRECTIONS
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import LOSSES, PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (RULES, [
            "dapo", "dr_grpo", "gae", "gigpo", "graph", "grpo", "igpo", "imitation", "max_rl", "mt_grpo", "opo",
            "reinforce_pp", "reinforce_pp_baseline", "rloo", "spo_tree", "tree_grpo", "treerl", "treerpo", "turn_gae",
            "vine",
        ]),
        (LOSSES, ["cispo", "dppo_tv", "gspo", "nll", "ppo_clip", "reinforce", "sapo"]),
        (CORRECTIONS, ["decoupled", "icepop", "sequence_mask", "tis"]),
        (AGGREGATIONS, ["seq_mean_token_mean", "seq_sum_const", "token_mean"]),
    ],
)
def test_everything_stands_in_its_table_under_its_own_name(table: Mapping[str, type], names: list[str]):
    assert {name: kind.name for name, kind in table.items()} == {name: name for name in names}


@pytest.mark.parametrize(("key", "value"), [("eps_low", 1.0), ("eps_high", 0.0), ("dual", 1.0)])
def test_a_clip_range_that_makes_no_sense_is_refused(key: str, value: float):
    with pytest.raises(ConfigError, match=f"ppo_clip.{key}"):
        PpoClip(**{key: value})


def test_a_rule_setting_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"grpo.eps"):
        Grpo(eps=0.0)


def test_a_constant_denominator_must_be_positive():
    with pytest.raises(ConfigError, match="constant"):
        SeqSumConst(constant=0.0)


def test_rules_need_no_torch():
    code = "import sys, treadle.algorithms.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
