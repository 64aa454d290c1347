"""The example of a credit rule of one's own runs as it is written, and is the one that docs/credit.md shows."""

import json
import runpy
from pathlib import Path

import pytest

import treadle
from treadle.core.errors import ConfigError
from treadle.recipes.catalog import find
from treadle.testing import check_credit

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_rule.py"
RULE = EXAMPLE.read_text().partition("# the rule\n")[2].partition("\n\n\n# the recipe")[0]


def test_the_rule_is_fifteen_lines():
    assert len([line for line in RULE.splitlines() if line.strip()]) <= 15


def test_the_rule_in_the_document_is_the_one_in_the_example():
    assert RULE in (ROOT / "docs" / "credit.md").read_text()


def test_the_rule_holds_what_every_rule_must_hold():
    assert check_credit(runpy.run_path(str(EXAMPLE))["FromHere"]()) is None


def test_the_example_trains_the_tiny_model_with_its_rule(tmp_path, monkeypatch):
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    recipe = find(str(EXAMPLE)).changed({"pipeline.updates": 1, "algorithm.rule.gamma": "0.5"})
    assert recipe.algorithm.rule.gamma == 0.5
    assert recipe.flat()["algorithm.rule"] == "from_here"
    treadle.train(recipe)
    (events,) = tmp_path.glob("runs/own-rule-*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    (update,) = [e for e in told if e["name"] == "update.done"]
    assert update["tokens_trained"] > 0


def test_a_setting_that_the_rule_lacks_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"algorithm.rule.gama"):
        find(str(EXAMPLE)).changed({"algorithm.rule.gama": 0.5})
