"""The annotate stage: every column is what a plain forward over one path says, and what cannot be had is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_paths import action_logprobs, credit_of, forest_of, trees

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.losses import PpoClip
from treadle.core.errors import ConfigError
from treadle.learner.config import LearnerConfig, ValueConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import pack
from treadle.learner.reference import FrozenReference
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest


def context(forest: Forest, row: int) -> torch.Tensor:
    path, at = [], row
    while at >= 0:
        path.append(forest.segments[at].ids)
        at = int(forest.parent[at])
    return torch.from_numpy(np.concatenate(path[::-1])).long()


def plain_states(policy: Policy, forest: Forest, row: int) -> torch.Tensor:
    ids = context(forest, row)
    with torch.no_grad():
        return policy.hidden(ids, torch.arange(len(ids)), CausalPlan())


def own(column: Column, forest: Forest, row: int) -> Column:
    return column[forest.start[row] : forest.start[row + 1]]


def train(learner: Learner, forest: Forest) -> None:
    weight, denominator = TokenMean().weights(forest)
    learner.update(
        pack(forest, credit_of(forest).collapse(forest, weight), denominator=denominator, budget_tokens=200), PpoClip()
    )


@pytest.mark.parametrize("budget", [20, 10_000])
def test_log_probs_entropies_and_values_are_those_of_plain_paths(policy64: Policy, budget: int) -> None:
    learner = Learner(policy64, LearnerConfig(tokens_per_pack=budget, value=ValueConfig()))
    assert learner.value is not None
    with torch.no_grad():
        learner.value.module[-1].weight.fill_(0.1)
    forest = forest_of(trees(1))
    noted = learner.annotate(forest, {"prox", "entropy", "value"})
    for row in range(len(forest)):
        n, states = len(forest.segments[row]), plain_states(policy64, forest, row)
        values = learner.value(states).detach().numpy()
        if len(states) > n:  # nothing predicts a context's first token
            assert own(noted.note("value"), forest, row) == pytest.approx(values[-n - 1 : -1], rel=1e-10)
            assert own(noted.note("value_after"), forest, row) == pytest.approx(values[-n:], rel=1e-10)
        if not forest.action[row]:
            assert np.isnan(own(noted.note("prox"), forest, row)).all()
            continue
        logp = action_logprobs(policy64, forest, row).detach().numpy()
        assert own(noted.note("prox"), forest, row) == pytest.approx(logp, rel=1e-12)
        spread = policy64.logits(states[-n - 1 : -1]).log_softmax(-1)
        entropy = -(spread.exp() * spread).sum(-1).detach().numpy()
        assert own(noted.note("entropy"), forest, row) == pytest.approx(entropy, rel=1e-12)


def test_an_answer_is_scored_behind_every_segment(policy64: Policy) -> None:
    learner, forest = Learner(policy64, LearnerConfig(tokens_per_pack=60)), forest_of(trees(2))
    answers = {key.task: np.array([5 + i, 9], dtype=np.int32) for i, key in enumerate(forest.keys)}
    learner.answers = answers.get
    noted = learner.annotate(forest, {"answer_prob"}).note("answer_prob")
    for row in range(len(forest)):
        said = torch.from_numpy(answers[forest.keys[forest.group[row]].task]).long()
        ids = torch.cat([context(forest, row), said])
        with torch.no_grad():
            states = policy64.hidden(ids, torch.arange(len(ids)), CausalPlan())[-3:-1]
            expected = float(policy64.logits(states).log_softmax(-1).gather(1, said[:, None]).sum())
        assert own(noted, forest, row) == pytest.approx(np.full(len(forest.segments[row]), expected), rel=1e-12)


def test_a_frozen_reference_stays_while_the_policy_learns(tmp_path, tiny_folder) -> None:
    policy, forest = Policy.load(tiny_folder), forest_of(trees(3))
    policy.save(tmp_path / "reference")
    learner = Learner(policy, LearnerConfig(lr=1e-2))
    learner.reference = FrozenReference(tmp_path / "reference", learner.config, dtype="float32")
    first = learner.annotate(forest, {"ref", "prox"})
    assert np.array_equal(first.note("ref"), first.note("prox"), equal_nan=True)
    train(learner, forest)
    later = learner.annotate(forest, {"ref", "prox"})
    assert np.array_equal(later.note("ref"), first.note("ref"), equal_nan=True)
    assert np.nanmax(np.abs(later.note("prox") - first.note("prox"))) > 1e-3


def test_where_adapters_train_the_reference_is_the_policy_without_them(tiny_folder) -> None:
    policy, forest = Policy.load(tiny_folder), forest_of(trees(4))
    learner = Learner(policy, LearnerConfig(lr=1e-2, lora_rank=2))
    first = learner.annotate(forest, {"ref", "prox"})
    np.testing.assert_allclose(first.note("ref"), first.note("prox"), rtol=0, atol=1e-5)
    train(learner, forest)
    later = learner.annotate(forest, {"ref", "prox"})
    assert np.array_equal(later.note("ref"), first.note("ref"), equal_nan=True)
    assert np.nanmax(np.abs(later.note("prox") - first.note("prox"))) > 1e-3


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("value", "no value head; set learner.value.level=token or turn"), ("ref", "no reference policy"),
        ("answer_prob", "task task-0 has no reference answer"), ("luck", "'luck': nobody computes it"),
    ],
)
def test_a_column_that_nobody_can_compute_is_refused(policy: Policy, column: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Learner(policy, LearnerConfig()).annotate(forest_of(trees(5)), {column})


def test_no_columns_cost_nothing(policy: Policy) -> None:
    forest = forest_of(trees(6))
    assert Learner(policy, LearnerConfig()).annotate(forest, frozenset()) is forest


def test_notes_reach_the_terms_of_the_edges_that_they_belong_to(policy: Policy) -> None:
    learner, forest = Learner(policy, LearnerConfig(value=ValueConfig())), forest_of(trees(7))
    noted = learner.annotate(forest, {"prox", "value"})
    weight, denominator = TokenMean().weights(noted)
    for batch in pack(noted, credit_of(noted).collapse(noted, weight), denominator=denominator, budget_tokens=30):
        at = noted.start[batch.row] + batch.offset
        assert batch.terms.ref is None
        assert batch.terms.ret is None
        assert batch.terms.prox is not None
        assert batch.terms.value_old is not None
        assert batch.terms.prox.numpy() == pytest.approx(noted.note("prox")[at])
        assert batch.terms.value_old.numpy() == pytest.approx(noted.note("value")[at])
