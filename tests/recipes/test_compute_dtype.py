"""Products in half precision, weights in float32: a run of them, beside engines that copy, and what it contradicts."""

from dataclasses import replace

import pytest
import torch
from words_recipe import words

import treadle
from treadle import ConfigError
from treadle.models.policy import Policy


def mixed(**engine):
    made = words(epochs=0, updates=3)
    return replace(
        made, compute_dtype="bfloat16", learner=replace(made.learner, max_skew=0.05),
        engine=replace(made.engine, **engine),
    )


@pytest.mark.parametrize("engine", [{}, {"copies": True}])
def test_a_run_rounds_products_in_engine_and_learner_and_trains_float32(ears, engine):
    """An engine with a process of its own passes its canary, which the learner's rounded products gave."""
    result = treadle.train(mixed(**engine), view="none", listeners=(ears,))
    updates = ears.named("update.done")
    assert result.reason == "done"
    assert [update["skipped"] for update in updates] == [False] * len(updates)
    assert all(0 < update["skew_mean"] < 0.05 for update in updates)
    saved = Policy.load(result.checkpoint / "model")
    assert saved.weight_dtype == torch.float32
    assert any((p != p.bfloat16().float()).any() for p in saved.module.parameters()), "weights are not rounded"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compute_dtype": "float64"}, "compute_dtype: got 'float64', expected none or bfloat16"),
        (
            {"compute_dtype": "bfloat16", "dtype": "bfloat16", "learner.max_skew": 0.1},
            "compute_dtype=bfloat16 contradicts dtype=bfloat16",
        ),
        ({"compute_dtype": "bfloat16"}, "compute_dtype=bfloat16 contradicts learner.max_skew=0.001"),
        (
            {"compute_dtype": "bfloat16", "learner.max_skew": "none", "engine.deterministic": True},
            "compute_dtype=bfloat16 contradicts engine.deterministic=true",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, said):
    with pytest.raises(ConfigError) as error:
        words().changed(changes)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_bound_for_rounded_products_is_taken_and_none_undoes_them():
    recipe = words().changed({"compute_dtype": "bfloat16", "learner.max_skew": 0.05})
    assert recipe.compute_dtype == "bfloat16"
    assert recipe.changed({"compute_dtype": "none"}).compute_dtype is None
