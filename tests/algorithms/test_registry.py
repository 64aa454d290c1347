"""Names from recipes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from treadle.algorithms.losses import PpoClip, loss
from treadle.algorithms.rules import RULES, aggregation, rule
from treadle.core.errors import ConfigError


def test_settings_reach_the_rule():
    assert rule("grpo", std=False, eps=0.5).std is False  # type: ignore[attr-defined]


def test_every_rule_is_registered_under_its_own_name():
    assert {name: kind.name for name, kind in RULES.items()} == {name: name for name in RULES}
    assert sorted(RULES) == ["dr_grpo", "grpo", "imitation", "rloo"]


def test_an_unknown_rule_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"rule: unknown name 'grop' \(did you mean 'grpo'\?\)"):
        rule("grop")


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"loss ppo_clip: unknown setting 'eps_hi' \(did you mean 'eps_high'\?\)"):
        loss("ppo_clip", eps_hi=0.3)


def test_a_missing_setting_is_named():
    with pytest.raises(ConfigError, match="constant"):
        aggregation("seq_sum_const")


@pytest.mark.parametrize(("key", "value"), [("eps_low", 1.0), ("eps_high", 0.0), ("dual", 1.0)])
def test_a_clip_range_that_makes_no_sense_is_refused(key: str, value: float):
    with pytest.raises(ConfigError, match=f"ppo_clip.{key}"):
        PpoClip(**{key: value})


@pytest.mark.parametrize(("name", "settings"), [("grpo", {"eps": 0.0})])
def test_a_rule_setting_that_makes_no_sense_is_refused(name: str, settings: dict[str, float]):
    with pytest.raises(ConfigError, match=f"{name}.eps"):
        rule(name, **settings)


def test_a_constant_denominator_must_be_positive():
    with pytest.raises(ConfigError, match="constant"):
        aggregation("seq_sum_const", constant=0.0)


def test_rules_need_no_torch():
    code = "import sys, treadle.algorithms.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
