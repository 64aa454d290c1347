"""The watchdog's keys in a recipe: what contradicts them, and that they may change in the middle of a run."""

from dataclasses import fields

import pytest
from words_recipe import words

from treadle import ConfigError, evaluate
from treadle.core.config import read_toml
from treadle.pipeline.evaluation import Evaluator
from treadle.pipeline.watchdog import WatchdogConfig
from treadle.recipes import run
from treadle.recipes.resume import FREE


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ({"limits.generate_s": 1500.0}, "1560"),
        ({"host.step_s": 1500.0}, "1560"),
        ({"pipeline.watchdog.rollout_s": 600.0}, "660"),
    ],
)
def test_a_call_that_may_take_longer_than_silence_is_borne_is_refused_by_key(overrides, seconds):
    said = rf"pipeline\.watchdog\.rollout_s=.* for {seconds} s; set it to more, or to none"
    with pytest.raises(ConfigError, match=said):
        words().changed(overrides)
    made = words().changed({**overrides, "pipeline.watchdog.rollout_s": "none"})
    assert made.pipeline.watchdog.rollout_s is None


def test_a_wrong_number_is_named_by_its_whole_key():
    with pytest.raises(ConfigError, match=r"^pipeline\.watchdog\.shrink_s: got -1\.0, expected > 0 seconds, or none"):
        words().changed({"pipeline.watchdog.shrink_s": -1})


def test_what_is_printed_is_taken_back(tmp_path):
    recipe = words().changed({"pipeline.watchdog.promote_s": 30, "pipeline.watchdog.shrink_s": "none"})
    (tmp_path / "printed.toml").write_text(recipe.toml())
    taken = words().changed(read_toml(tmp_path / "printed.toml")).pipeline
    assert taken == recipe.pipeline
    assert (taken.watchdog.promote_s, taken.watchdog.shrink_s) == (30.0, None)


def test_evaluations_bear_silence_as_long_as_the_recipe_says(monkeypatch):
    told = []

    class Told(Evaluator):
        def __init__(self, *args, silent_s, **parts):
            told.append(silent_s)
            super().__init__(*args, silent_s=silent_s, **parts)

    monkeypatch.setattr(run, "Evaluator", Told)
    evaluate(words(epochs=0).changed({"pipeline.watchdog.rollout_s": 1234}), tasks=1)
    assert told == [1234.0]


def test_how_long_silence_is_borne_may_change_in_the_middle_of_a_run():
    assert {f"pipeline.watchdog.{field.name}" for field in fields(WatchdogConfig)} <= FREE
