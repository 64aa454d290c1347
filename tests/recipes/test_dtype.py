"""Weights in half precision: a run of them, what it asks of the bound of the skew, and log-probs that stay exact."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from words_recipe import words

import treadle
from treadle import ConfigError
from treadle.algorithms.losses import LossTerms, Nll
from treadle.learner.config import LearnerConfig
from treadle.learner.head import Head
from treadle.learner.learner import Learner
from treadle.models.policy import Policy


def half(**learner):
    made = words(epochs=0, updates=3)
    return replace(made, dtype="bfloat16", learner=replace(made.learner, **{"max_skew": 0.1, **learner}))


def test_a_run_in_half_precision_measures_its_skew_and_trains(ears):
    result = treadle.train(half(), view="none", listeners=(ears,))
    updates = ears.named("update.done")
    assert result.reason == "done"
    assert [update["skipped"] for update in updates] == [False] * len(updates)
    assert all(1e-5 < update["skew_mean"] < 0.1 for update in updates)


def test_a_checkpoint_in_half_precision_is_taken_back_to_the_last_bit(tmp_path):
    result = treadle.train(half(), view="none")
    saved, again = (Policy.load(result.checkpoint / "model", dtype="bfloat16") for _ in range(2))
    saved.restore(result.checkpoint / "model", version=3)
    assert saved.weight_dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(saved.state().values(), again.state().values(), strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "int8"}, "dtype: got 'int8', expected one of float32, bfloat16, float64"),
        ({"dtype": "bfloat16"}, "dtype=bfloat16 contradicts learner.max_skew=0.001"),
    ],
)
def test_formats_that_cannot_be_are_refused_in_one_line(changes, said):
    with pytest.raises(ConfigError) as error:
        words().changed(changes)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_bound_for_half_precision_is_taken():
    recipe = words().changed({"dtype": "bfloat16", "learner.max_skew": 0.1})
    assert (recipe.dtype, recipe.learner.max_skew) == ("bfloat16", 0.1)
    assert words().changed({"dtype": "bfloat16", "learner.max_skew": "none"}).learner.max_skew is None


def test_log_probs_and_losses_of_half_precision_weights_are_not_rounded_to_it():
    """The softmax of the same logits in float32: only the logits themselves are rounded."""
    policy = Policy.load("tiny", dtype="bfloat16")
    head = Head(policy, rows=3, temperature=1.0)
    states = torch.randn(5, policy.dims.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.arange(5)
    exact = policy.logits(states).float().log_softmax(-1).gather(1, targets[:, None])[:, 0].detach()
    assert torch.allclose(head.logprobs(states, targets), exact, atol=1e-6)
    ones = torch.ones(5)
    terms = LossTerms(old=ones * np.nan, pos_w=ones, neg_w=0 * ones, mass=ones, denominator=5.0)
    value, gradient, logp = head.backward(states, targets, terms, Nll())
    assert (value.dtype, logp.dtype, gradient.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    assert torch.allclose(logp, exact, atol=1e-6)
    assert float(value) == pytest.approx(-float(exact.mean()), rel=1e-5)
    assert Learner(policy, LearnerConfig(max_skew=None)).policy is policy
