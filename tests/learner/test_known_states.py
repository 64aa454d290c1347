"""Training from states that are known: the same gradients, and exactly the work that is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError
from treadle.core.outcome import OK
from treadle.core.ports import CacheHint, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.learner.config import LearnerConfig, ValueConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, looked_at, named, pack
from treadle.models import Policy, build_tiny
from treadle.models.memo import Names
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

TURNS, SIZE = 2, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, heads=4, kv_heads=2, layers=4)


def packed(groups: list[Group], budget: int = 1000) -> list[PackedBatch]:
    forest = Forest.of(groups)
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=budget, tolerance=1e-4)


def gradients(learner: Learner, packs: list[PackedBatch]) -> dict[str, torch.Tensor]:
    for batch in packs:
        learner.accumulate(batch, PpoClip())
    found = {n: p.grad.clone() for n, p in learner.policy.module.named_parameters() if p.grad is not None}
    learner._drop_gradients()
    return found


async def played(policy: Policy) -> Group:
    """A group of two turns, sampled by the engine."""
    key = GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0)
    group, random = Group(key), np.random.default_rng(0)
    prompt = group.prompt(random.integers(3, 250, 20).astype(np.int32))

    async def rollout(index: int) -> None:
        name = group.begin(index).id
        at, ids = prompt, prompt.ids
        for turn in range(TURNS):
            done = await engine.generate(Request(
                prompt=ids, sampling=Sampling(max_tokens=5), stream=Stream(1).at(index, turn),
                cache=CacheHint(rollout=name, trunk="g", trunk_len=20),
            ))
            at = group.sampled(name, done, after=at, turn=turn)
            ids = np.concatenate([ids, done.ids])
            if turn + 1 < TURNS:
                at = group.observed(name, np.arange(100, 107, dtype=np.int32) + index, after=at, turn=turn)
                ids = np.concatenate([ids, at.ids])
        group.pay(name, "correct", float(index % 2))
        group.end(name, OK)

    async with LocalEngine(policy, EngineConfig(slots=8, context=256, kv_budget_tokens=8192)) as engine:
        await asyncio.gather(*(rollout(index) for index in range(SIZE)))
    return group


def test_a_learner_after_an_engine_computes_nothing_below_the_boundary(folder: Path) -> None:
    policy = Policy.load(folder)
    learner = Learner(policy, LearnerConfig(top_layers=2))
    calls = [0] * 4
    packs = packed([asyncio.run(played(policy))])
    for index, layer in enumerate(policy.module.model.layers):
        layer.register_forward_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    known = gradients(learner, packs)
    memo = policy.memo
    assert memo is not None
    assert calls == [0, 0, len(packs), len(packs)]
    assert (memo.found, memo.missed) == (sum(b.tokens for b in packs), 0)

    plain = gradients(Learner(Policy.load(folder), LearnerConfig(top_layers=2, memo_tokens=0)), packs)
    assert known.keys() == plain.keys()
    for name, gradient in known.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-7)


def test_what_the_learner_computed_it_knows_the_next_time(folder: Path) -> None:
    learner = Learner(Policy.load(folder), LearnerConfig(top_layers=2))
    packs = packed(random_groups(3, 3, Growth(vocabulary=200, failure=0.0)), budget=60)
    first = gradients(learner, packs)
    memo = learner.policy.memo
    assert memo is not None
    before = memo.found
    second = gradients(learner, packs)
    assert memo.found - before == sum(b.tokens for b in packs)
    for name, gradient in second.items():
        torch.testing.assert_close(gradient, first[name], rtol=1e-5, atol=1e-8)


def test_names_of_a_tree_are_those_of_its_paths() -> None:
    for batch in packed(random_groups(5, 4, Growth(vocabulary=50, failure=0.0)), budget=80):
        sums, ids, end = named(batch, Names()), batch.ids.numpy(), batch.end.numpy()
        for token in range(batch.tokens):
            path = [k for k in range(token + 1) if token < end[k]]
            assert np.array_equal(sums[token], Names().sums(ids[path])[-1])


def test_only_the_ends_of_paths_are_looked_at_by_nobody() -> None:
    for batch in packed(random_groups(5, 4, Growth(vocabulary=50, failure=0.0)), budget=80):
        seen, end = looked_at(batch), batch.end.numpy()
        blind = np.flatnonzero(~seen)
        assert len(blind)
        assert all(end[token] == token + 1 for token in blind)
        assert not np.isin(batch.src.numpy(), blind).any()


def test_a_memo_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.memo_tokens: got -1, expected >= 0"):
        LearnerConfig(memo_tokens=-1)


def test_the_value_behind_a_rollout_does_not_come_from_a_state_that_nobody_computed(folder: Path) -> None:
    """The engine never runs the last token that it samples, so no memo has its state."""
    config = LearnerConfig(top_layers=2, value=ValueConfig(width=4))
    found = []
    group: Group | None = None
    for memo_tokens in (32768, 0):
        learner = Learner(Policy.load(folder), replace(config, memo_tokens=memo_tokens))
        head = learner.value
        assert head is not None
        torch.manual_seed(0)
        with torch.no_grad():
            head.module[-1].weight.copy_(torch.randn(1, 4))
        group = group or asyncio.run(played(learner.policy))
        found.append(learner.annotate(Forest.of([group]), {"value"}))
    for name in ("value", "value_after"):
        np.testing.assert_allclose(found[0].note(name), found[1].note(name), rtol=1e-4, atol=1e-5)


class CountedNames(Names):
    """Counts the tokens that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.named = 0

    def sums(self, ids, *, start=0, before=None):
        self.named += len(ids)
        return super().sums(ids, start=start, before=before)


def test_a_pack_is_named_once_whether_its_states_are_known_or_not(folder: Path):
    policy = Policy.load(folder)
    learner = Learner(policy, LearnerConfig(top_layers=2))
    assert policy.memo is not None
    names = policy.memo.names = CountedNames()
    (batch,) = packed(random_groups(3, 2, Growth(breaks=0.0)))
    for asked in (1, 2):  # nothing is known, then everything
        learner.accumulate(batch, PpoClip())
        assert names.named == asked * batch.tokens
