"""One budget for engine and learner: how it is divided, what it cannot hold, and a run under it."""

from dataclasses import replace

import pytest
from words_recipe import words

import treadle
from treadle import ConfigError, MemoryConfig
from treadle.core.memory import GB, NEAR
from treadle.learner.footprint import footprint
from treadle.models.policy import Policy
from treadle.recipes.memory import plan_memory

PROGRAM = 300_000_000


@pytest.fixture
def policy():
    return Policy.load("tiny")


def budgeted(gigabytes, **engine):
    made = words()
    return replace(made, memory=MemoryConfig(budget_gb=gigabytes), engine=replace(made.engine, **engine))


def planned(recipe, policy):
    return plan_memory(recipe, policy, resident=PROGRAM + policy.weight_bytes + policy.copied_bytes)


def test_without_a_budget_nothing_is_planned(policy):
    assert plan_memory(words(), policy) is None


def test_a_large_budget_leaves_the_recipes_sizes_as_they_are(policy):
    recipe = budgeted(8)
    plan = planned(recipe, policy)
    assert plan.applied(recipe) == recipe
    assert (plan.kv_tokens, plan.pack_tokens) == (8192, 1024)
    assert plan.fixed["program"] == PROGRAM


@pytest.mark.parametrize("gigabytes", [0.35, 0.36, 0.4, 0.6])
def test_the_parts_fill_the_budget_and_no_more(policy, gigabytes):
    recipe = budgeted(gigabytes, kv_budget_tokens=1 << 20)
    recipe = replace(recipe, learner=replace(recipe.learner, tokens_per_pack=1 << 20))
    plan = planned(recipe, policy)
    held = sum(plan.fixed.values()) + plan.cache + plan.work
    spare = NEAR * gigabytes * GB - held
    assert 0 <= spare < max(1024 * plan.kv_bytes, plan.kv_bytes + footprint(policy, recipe.learner).per_token)
    assert plan.kv_tokens % recipe.engine.block_tokens == 0
    assert plan.applied(recipe).engine.kv_budget_tokens == plan.kv_tokens
    assert plan.applied(recipe).learner.tokens_per_pack == plan.pack_tokens >= recipe.limits.max_context


def test_a_path_may_be_longer_than_a_pack_and_takes_its_keys_and_values_then(policy):
    recipe = budgeted(0.5, kv_budget_tokens=1 << 20)
    longest = recipe.limits.max_context
    recipe = replace(recipe, learner=replace(recipe.learner, tokens_per_pack=64), coldstart=None)
    said = footprint(policy, recipe.learner)
    plan = planned(recipe, policy)
    assert plan.pack_tokens == 64 < longest
    assert plan.work == max(said.checkpoint, said.pack(64) + longest * 2 * plan.kv_bytes)
    assert sum(plan.fixed.values()) + plan.cache + plan.work <= NEAR * 0.5 * GB


def test_a_process_for_the_engine_gets_its_part_of_the_budget(policy):
    recipe = budgeted(2, copies=True)
    plan = planned(recipe, policy)
    assert plan.fixed["engine_process"] > PROGRAM
    assert plan.own_budget + plan.engine_budget == plan.budget == 2 * GB
    assert NEAR * plan.engine_budget == pytest.approx(plan.fixed["engine_process"] + plan.cache, abs=2)


def test_a_budget_that_does_not_hold_the_fixed_part_is_one_line_with_what_to_do(policy):
    with pytest.raises(ConfigError) as error:
        planned(budgeted(0.3), policy)
    line = str(error.value)
    assert line.startswith("memory.budget_gb: got 0.3, expected at least 0.3")
    assert [word for word in ("program 0.30", "learner.top_layers", "limits.max_context") if word not in line] == []
    assert "\n" not in line
    enough = float(line.partition("at least ")[2].partition(":")[0])
    assert planned(budgeted(enough), policy) is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory.budget_gb": 0}, "memory.budget_gb: got 0.0, expected > 0"),
        ({"memory.engine_share": 1}, "memory.engine_share: got 1.0, expected between 0 and 1"),
        ({"memory.budget_gb": 4, "deterministic": True}, "memory.budget_gb=4 contradicts deterministic=true"),
    ],
)
def test_values_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ConfigError) as error:
        words().changed(changes)
    assert said in str(error.value)


def test_a_run_tells_its_plan_and_what_it_did_when_memory_ran_short(ears, monkeypatch):
    """The budget is just what the plan needs; then more is resident than was planned for."""
    held = {"bytes": PROGRAM}
    monkeypatch.setattr("treadle.core.memory.resident_bytes", lambda: held["bytes"])
    monkeypatch.setattr("treadle.recipes.memory.resident_bytes", lambda: held["bytes"])
    ears.react = lambda event: held.update(bytes=int(2 * GB)) if event.name == "memory.planned" else None
    result = treadle.train(budgeted(0.6), view="none", listeners=(ears,))
    (plan,) = ears.named("memory.planned")
    assert plan["kv_tokens"] == 8192
    acts = ears.named("memory.relieved")
    assert "learner" in {act["who"] for act in acts}
    assert result.reason == "done"
    assert "Where memory ran short" in (result.folder / "report.md").read_text()
    assert "budget_gb = 0.6" in (result.folder / "recipe.toml").read_text()
