"""A recipe refuses what contradicts itself, and its printed form is taken back."""

import pytest
from words_recipe import Words, words

from treadle import Algorithm, ConfigError, ListTaskset, Rloo, SeqSumConst, Task
from treadle.core.config import read_toml
from treadle.recipes.shell import shell, shell_smoke


@pytest.mark.parametrize(
    ("overrides", "words_in_it"),
    [
        ({"learner.temperature": 0.7}, ("learner.temperature=0.7", "limits.temperature=1.0", "contradicts")),
        ({"limits.max_context": 4096}, ("limits.max_context=4096", "engine.context=512", "at most")),
        ({"pipeline.group_size": 1}, ("pipeline.group_size=1", "algorithm.rule=grpo", "at least 2")),
        ({"limits.temperature": 0}, ("limits.temperature=0", "learner.temperature=1.0", "evaluation.temperature")),
        ({"pipeline.lag": 2, "pipeline.max_staleness": 1}, ("pipeline.max_staleness=1", "pipeline.lag=2")),
        ({"world.sandbox": "docker"}, ("world.sandbox", "'docker'", "bubblewrap")),
        ({"pipline.updates": 3}, ("pipline.updates", "did you mean 'pipeline.updates'?")),
        ({"pipeline.updates": "many"}, ("pipeline.updates", "'many'", "str", "expected int")),
        ({"algorithm.rule": "grop"}, ("algorithm.rule", "'grop'", "did you mean 'grpo'?")),
        ({"algorithm.rule": "tree_pg"}, ("aggregation=token_mean", "rule=tree_pg", "aggregation=seq_sum_const")),
        (
            {"algorithm.rule": "tree_pg", "algorithm.aggregation": "seq_sum_const", "branching": "expand_finished"},
            ("branching=expand_finished", "algorithm.rule=tree_pg", "fanout_before_children"),
        ),
        ({"algorithm.rule": "tree_pg", "algorithm.rule.std": True}, ("tree_pg.std", "got true", "expected false")),
        ({"algorithm.rule": "gigpo", "algorithm.rule.gamma": 2}, ("algorithm.rule", "gigpo.gamma: got 2", "<= 1")),
        ({"algorithm.shared": "sum"}, ("algorithm.shared", "'sum'", "path_sum, mean, first, node")),
        ({"algorithm.shared": "node"}, ("algorithm.shared=node", "algorithm.aggregation=token_mean", "seq_sum_const")),
        ({"coldstart.learner.lr": -1}, ("coldstart.learner.lr", "got -1.0", "> 0")),
        ({"coldstart.training.epochs": 0}, ("coldstart.training", "epochs", "got 0")),
        ({"coldstart": 3}, ("coldstart", "got 3", "section with keys")),
        ({"evaluation.tasks": 0}, ("evaluation.tasks", "got 0", ">= 1")),
        ({"threads": 0}, ("threads", "got 0", ">= 1, or none")),
        ({"limits.max_turns": 0}, ("limits.max_turns", "got 0", ">= 1 or none")),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_names_it(overrides, words_in_it):
    with pytest.raises(ConfigError) as error:
        shell().changed(overrides)
    line = str(error.value)
    assert [word for word in words_in_it if word not in line] == []
    assert "\n" not in line


@pytest.mark.parametrize("made", [shell, shell_smoke, words])
def test_the_printed_recipe_is_taken_back_and_changes_nothing(made, tmp_path):
    recipe = made()
    (tmp_path / "printed.toml").write_text(recipe.toml())
    assert recipe.changed(read_toml(tmp_path / "printed.toml")) == recipe


def test_a_changed_recipe_prints_its_changes_and_is_taken_back(tmp_path):
    recipe = shell().changed({"algorithm.aggregation": "seq_sum_const", "algorithm.rule": "rloo", "coldstart": "none",
                              "algorithm.shared": "node"})
    assert recipe.coldstart is None
    assert isinstance(recipe.algorithm.aggregation, SeqSumConst)
    (tmp_path / "printed.toml").write_text(recipe.toml())
    assert shell().changed(read_toml(tmp_path / "printed.toml")) == recipe


def test_a_class_in_place_of_its_object_is_refused_before_anything_is_played():
    with pytest.raises(ConfigError, match=r"algorithm\.rule: got the class Rloo, expected an object.*rule=Rloo\(\)"):
        Algorithm(rule=Rloo)


def test_a_rule_that_needs_a_constant_denominator_is_taken_with_one():
    changes = {"algorithm.rule": "tree_pg", "algorithm.aggregation": "seq_sum_const", "algorithm.rule.root": 0.3}
    assert shell().changed(changes).algorithm.rule.root == 0.3


def test_objects_of_a_world_cannot_be_set_from_text():
    recipe = words(ListTaskset([Task(id="a", prompt="go")]))
    with pytest.raises(ConfigError, match=r"world\.tasks"):
        recipe.changed({"world.tasks": "others"})
    assert recipe.changed({"world.tasks": "ListTaskset"}) == recipe
    assert words(Words()).flat()["world.tasks"] == "Words"
