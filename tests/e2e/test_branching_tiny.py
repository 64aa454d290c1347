"""A tiny model trains on trees: real engine, real learner, a world whose episodes are forked while they live."""

from __future__ import annotations

from dataclasses import replace

import pytest

import treadle
from treadle import (
    EngineConfig,
    Env,
    EvaluationConfig,
    LearnerConfig,
    PipelineConfig,
    PlainParser,
    Recipe,
    RolloutLimits,
    Step,
    Task,
    World,
    user,
)
from treadle.envs.env import Fork
from treadle.recipes.replay import replay
from treadle.trajectory.forest import Forest
from treadle.trajectory.store import read_events, read_groups


class Three(Env):
    """Three turns; pays for the length of what it hears."""

    deterministic = True
    fork = Fork.COPY

    async def reset(self, task, ctx):
        self.heard = []
        return [user(task.prompt)]

    async def step(self, action):
        self.heard.append(action.text)
        return Step(messages=(user("on"),), terminated=len(self.heard) == 3, state_key=str(len(self.heard)))

    async def score(self):
        return {"length": sum(map(len, self.heard)) / 24}


class Goes:
    """Endless tasks."""

    def size(self, split):
        return None

    def task(self, split, index):
        return Task(id=f"{split}-{index}", prompt="go", split=split)

    def demonstration(self, task):
        return None


def recipe(branching, runs, **changes):
    made = Recipe(
        name="three", world=World(tasks=Goes(), env=Three, reads=PlainParser()), model="tiny", runs=runs,
        limits=RolloutLimits(
            max_turns=3, max_tokens_per_turn=16, max_context=128, stop_strings=tuple("abcdefghijklmnopqrstuvwxyz")
        ),
        engine=EngineConfig(slots=16, context=128, kv_budget_tokens=8192), learner=LearnerConfig(lr=1e-3),
        pipeline=PipelineConfig(group_size=2, groups_per_update=2, updates=2), deterministic=True,
        evaluation=EvaluationConfig(tasks=2, untouched_tasks=2, temperature=1.0),
    )
    return made.changed({"branching": branching, **changes})


POLICIES = {
    "fixed": {"branching.widths": [2, 2]}, "entropy": {"branching.threshold": 0.0}, "expand": {},
    "expand_finished": {}, "probe": {"branching.probes": 2, "branching.turns": 1},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_on_trees_trains_and_replays_bit_for_bit(tmp_path, policy):
    result = treadle.train(recipe(policy, tmp_path, **POLICIES[policy]), view="none")
    assert (result.reason, result.version) == ("done", 2)
    groups = list(read_groups(result.folder, split="train"))
    forks = [r for g in groups for r in g.rollouts.values() if r.forked_from]
    assert forks
    assert {r.probe for r in forks} == {policy == "probe"}
    for group in groups:
        forest = Forest.of([group])
        assert len(forest.rollouts) == len(group.valid) >= 2
        assert all(group.segments[r.forked_at].snapshot or group.segments[r.forked_at].rollout is None
                   for r in group.rollouts.values() if r.forked_at)
    held = [r for g in read_groups(result.folder, split="heldout") for r in g.rollouts.values()]
    assert held
    assert not any(r.forked_from for r in held)
    for event in read_events(result.folder, prefix="update.done"):
        assert event.values["branching.probes" if policy == "probe" else "branching.forks"] > 0
        assert event.values["tokens_sampled"] > event.values["tokens_mean"]
    found = replay(result.folder, recipe=recipe(policy, tmp_path, **POLICIES[policy]))
    assert found.exact, found


def test_a_rollout_says_the_same_whether_it_looks_or_not(tmp_path):
    """A look leaves nothing behind in the engine that a token of the rollout could depend on."""
    def said(branching, **changes):
        result = treadle.train(recipe(branching, tmp_path, **changes, **{"pipeline.updates": 1}), view="none")
        groups = read_groups(result.folder, split="train")
        return [[s.ids.tolist() for s in g.actions(f"{g.key.id}.{i}.0")] for g in groups for i in range(2)]

    looked = said("entropy", **{"branching.threshold": 1e9, "branching.look_tokens": 3})
    assert looked == said("none")


def test_trees_of_one_budget_stay_within_it(tmp_path):
    made = replace(recipe("fixed", tmp_path), deterministic=False).changed({
        "branching.widths": [2, 2], "branching.tokens_per_group": 100,
    })
    result = treadle.train(made, view="none")
    groups = read_groups(result.folder, split="train")
    sampled = [sum(len(s) for s in group.segments.values() if s.versions) for group in groups]
    assert 0 < max(sampled) <= 100
    refused = [e.values.get("branching.refused.budget", 0) for e in read_events(result.folder, prefix="update.done")]
    assert sum(refused) > 0
