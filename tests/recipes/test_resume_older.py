"""Going on with a run that began before a key was there, or with one that is there no longer."""

from pathlib import Path

import pytest
from words_recipe import words

import treadle
from treadle.core.clock import SystemClock
from treadle.inference.config import EngineConfig
from treadle.recipes.folder import RunFolder
from treadle.recipes.front import resolve
from treadle.recipes.resume import recipe_of
from treadle.trajectory.store import TrajectoryStore

FILE = str(Path(__file__).parent / "words_recipe.py")


def begun(*, without=(), instead="", recipe=None, ref=FILE):
    """A run folder whose recipe lacks the keys that begin so."""
    folder = Path("runs") / "words-old"
    folder.mkdir(parents=True)
    lines = [line for line in (recipe or words()).toml().splitlines() if not line.startswith(tuple(without))]
    (folder / "recipe.toml").write_text("\n".join([*lines, instead]) + "\n")
    with TrajectoryStore(folder / "run.db", clock=SystemClock()) as store:
        store.meta("recipe_ref", ref)
    return folder


def test_a_key_that_was_not_there_has_its_default_whatever_the_recipe_says_by_now(capfd):
    folder = begun(without=["engine.kv_budget_tokens", "learner.memo_tokens", "pipeline.watchdog"])
    recipe = resolve(None, resume=folder)
    assert words().engine.kv_budget_tokens == 8192
    assert recipe.engine.kv_budget_tokens == EngineConfig().kv_budget_tokens != 8192
    assert recipe.pipeline.watchdog == words().pipeline.watchdog
    assert recipe.changed({"engine.kv_budget_tokens": 8192}).flat() == words().flat()
    said = capfd.readouterr().err
    assert said.startswith("treadle: words-old began before these keys were there, and goes on with their defaults: ")
    assert f"engine.kv_budget_tokens={EngineConfig().kv_budget_tokens}; learner.memo_tokens=" in said
    assert "watchdog" not in said, "what may change at any time is no news"
    assert said.count("\n") == 1


def test_a_section_that_was_not_there_is_off(capfd):
    set_now = {"pipeline.horizon.first": 1, "pipeline.horizon.updates": 3}
    folder = begun(without=["pipeline.horizon", "cassette"], recipe=words().changed({"limits.max_turns": 2}))
    assert resolve(None, resume=folder).pipeline.horizon is None
    assert "cassette.file=none; " in capfd.readouterr().err
    said = r"pipeline\.horizon='none', not \(no such key\); pipeline\.horizon\.first=\(no such key\), not 1"
    with pytest.raises(treadle.ConfigError, match=said):
        resolve(None, overrides=set_now, resume=folder)


def test_a_name_that_was_not_chosen_is_the_default_one():
    pooled = words().changed({"pipeline.curriculum": "pools"})
    folder = begun(without=["pipeline.curriculum", '"pipeline.curriculum'], recipe=pooled)
    assert resolve(pooled, resume=begun_again(folder, pooled)).pipeline.curriculum.name == "pools"
    with pytest.raises(treadle.ConfigError, match=r"pipeline\.curriculum='tickets', not 'pools'"):
        resolve(pooled, resume=folder)


def begun_again(folder, recipe):
    """The same folder with a whole recipe, beside it."""
    whole = folder.with_name("words-whole")
    whole.mkdir()
    (whole / "run.db").write_bytes((folder / "run.db").read_bytes())
    (whole / "recipe.toml").write_text(recipe.toml())
    return whole


def test_a_new_key_cannot_be_set_in_the_middle():
    folder = begun(without=["learner.weight_decay"])
    said = r"words-old began with learner\.weight_decay=0\.0, not 0\.5: that cannot change in the middle of a run"
    with pytest.raises(treadle.ConfigError, match=said):
        resolve(None, overrides={"learner.weight_decay": 0.5}, resume=folder)


def test_a_recipe_object_that_sets_it_is_refused_by_key():
    folder = begun(without=["engine.kv_budget_tokens"], ref="")
    with pytest.raises(treadle.ConfigError, match=r"engine\.kv_budget_tokens=\d+, not 8192: that cannot change"):
        resolve(words(), resume=folder)


def test_what_another_key_decides_is_no_contradiction():
    exact = words().changed({"deterministic": "true"})
    assert (exact.learner.memo_tokens, exact.engine.deterministic) == (0, True)
    folder = begun(without=["learner.memo_tokens", "engine.deterministic"], recipe=exact)
    assert resolve(None, resume=folder).flat() == resolve(exact, resume=folder).flat() == exact.flat()


def test_an_evaluation_takes_the_same_recipe():
    folder = begun(without=["engine.kv_budget_tokens"])
    assert recipe_of(folder).engine == resolve(None, resume=folder).engine


def test_a_key_that_is_there_no_longer_is_one_line_with_what_to_do():
    folder = begun(instead='"learner.gone" = 3')
    with pytest.raises(treadle.ConfigError) as error:
        resolve(None, resume=folder)
    said = str(error.value)
    where = RunFolder.existing(folder).recipe
    assert said.startswith(f"{where}: unknown key 'learner.gone'")
    assert said.endswith(
        "it was written by another version of Treadle, or of its recipe: go on with that one, or start a new run"
    )
    assert "\n" not in said


def test_a_whole_recipe_says_nothing(capfd):
    assert resolve(None, resume=begun()).flat() == words().flat()
    assert capfd.readouterr().err == ""
