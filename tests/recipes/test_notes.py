"""Runs whose rules and losses need notes: they train, go on to the last bit, and refuse what cannot be."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from valued_recipe import Lucky
from words_recipe import words

import treadle
from treadle import Algorithm, EvaluationConfig
from treadle.learner.prm import PrmFit
from treadle.pipeline.evaluation import ValidationConfig
from treadle.recipes.prm import make_prm
from treadle.trajectory.store import read_groups

FILE = str(Path(__file__).parent / "valued_recipe.py")
SAVED = ("model/model.safetensors", "optimiser.safetensors", "value.safetensors", "learner.json")


def bits(result):
    return [(result.checkpoint / name).read_bytes() for name in SAVED]


class Ears:
    """Keeps what updates told."""

    def __init__(self):
        self.updates = []

    def emit(self, event):
        if event.name == "update.done":
            self.updates.append(event.values)


def test_a_value_head_and_a_penalty_train_beside_the_policy():
    ears = Ears()
    result = treadle.train(f"{FILE}:valued", view="none", listeners=[ears])
    assert (result.folder / "reference" / "model.safetensors").is_file()
    first, *_, last = ears.updates
    assert first["stat.kl_ref"] == pytest.approx(0, abs=1e-9)
    assert last["stat.kl_ref"] > 0
    assert first["stat.value"] == 0
    assert last["stat.value"] != 0


def test_a_run_with_notes_that_was_stopped_ends_with_the_bits_of_one_that_was_not(interrupts):
    overrides = {"deterministic": True}
    stopped = treadle.train(
        f"{FILE}:valued", overrides=overrides, view="none", listeners=[interrupts("update.done", signal.SIGINT)]
    )
    assert stopped.reason == "interrupted"
    whole = treadle.train(f"{FILE}:valued", overrides=overrides, view="none")
    again = treadle.train(resume=stopped.folder, view="none")
    assert again.reason == "done"
    assert bits(again) == bits(whole)


def test_a_resumed_run_whose_reference_is_gone_says_so(interrupts):
    stopped = treadle.train(f"{FILE}:valued", view="none", listeners=[interrupts("update.done", signal.SIGINT)])
    (stopped.folder / "reference").rename(stopped.folder / "elsewhere")
    with pytest.raises(treadle.ConfigError, match=r"reference is gone: .* begin a new run"):
        treadle.train(resume=stopped.folder, view="none")


def test_reference_answers_reach_the_rule():
    assert treadle.train(f"{FILE}:likely", view="none").version == 2


def test_a_world_without_reference_answers_is_refused_before_training():
    with pytest.raises(treadle.ConfigError, match="rule=likely needs reference answers: task train-0 has none"):
        treadle.train(f"{FILE}:unanswered", view="none")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"algorithm.correction": "tis"}, r"algorithm\.correction=tis contradicts algorithm\.prox=behaviour"),
        ({"algorithm.loss": "reinforce", "pipeline.lag": 1}, r"loss=reinforce contradicts a staleness of up"),
        ({"algorithm.prox": "luck"}, r"algorithm\.prox: got 'luck'"),
        ({"algorithm.kl.estimate": "k4"}, r"algorithm\.kl\.estimate: got 'k4', expected one of k1, k2, k3"),
        ({"algorithm.prm.by": "value"}, r"algorithm\.prm\.folder: got nothing, expected a folder"),
        ({"learner.value.level": "step"}, r"learner\.value\.level: got 'step'"),
    ],
)
def test_what_contradicts_is_refused_by_key(overrides, said):
    with pytest.raises(treadle.ConfigError, match=said):
        words().changed(overrides)


def test_a_rule_that_needs_values_is_refused_without_a_head():
    with pytest.raises(treadle.ConfigError, match=r"rule=baseline needs values and learner\.value is none: set"):
        treadle.train(f"{FILE}:valued", overrides={"learner.value": "none"}, view="none")


def test_a_rule_that_needs_what_nobody_computes_is_refused():
    with pytest.raises(treadle.ConfigError, match=r"algorithm\.rule=lucky needs the column 'luck', which nobody"):
        Algorithm(rule=Lucky())


@pytest.mark.parametrize(
    "overrides",
    [
        {"algorithm.rule": "gae", "learner.value.level": "token"},
        {"algorithm.rule": "turn_gae", "learner.value.level": "turn", "learner.value.width": 8},
        {"algorithm.loss": "gspo", "algorithm.aggregation": "seq_mean_token_mean"},
        {"algorithm.correction": "decoupled", "pipeline.lag": 1},
        {"algorithm.correction": "sequence_mask", "pipeline.lag": 1},
        {"algorithm.loss": "reinforce", "algorithm.correction": "icepop", "pipeline.lag": 1},
        {"algorithm.kl.where": "reward", "algorithm.kl.estimate": "k1", "learner.lora_rank": 2},
    ],
)
def test_every_kind_of_loss_trains_a_run(overrides):
    result = treadle.train(words(epochs=0, evaluation=0), overrides=overrides, view="none")
    assert result.version == 2
    assert not (result.folder / "reference").exists()


def test_a_process_reward_model_of_one_run_pays_the_next():
    recipe = words(epochs=0, updates=4, evaluation=0)
    first = treadle.train(recipe, view="none")
    made = make_prm(first.folder, fit=PrmFit(epochs=20))
    assert made.folder == first.folder / "prm"
    assert made.report.nodes > 20
    result = treadle.train(recipe, overrides={"algorithm.prm.folder": str(made.folder)}, view="none")
    assert result.version > 0


def test_a_process_reward_model_that_is_not_there_is_refused_before_training():
    with pytest.raises(treadle.ConfigError, match=r"algorithm\.prm\.folder=nowhere: got no readable prm\.json"):
        treadle.train(words(), overrides={"algorithm.prm.folder": "nowhere"}, view="none")


def test_a_run_without_scored_groups_makes_no_process_reward_model():
    recipe = replace(words(updates=0, epochs=0), evaluation=EvaluationConfig(tasks=2))
    folder = treadle.train(recipe, view="none").folder
    with pytest.raises(treadle.ConfigError, match="holds no group that was scored; train first"):
        make_prm(folder)


def test_a_process_reward_model_learns_from_what_training_played_alone():
    recipe = replace(words(epochs=1, updates=5, evaluation=0), validation=ValidationConfig(tasks=4, temperature=1.0))
    folder = treadle.train(recipe, overrides={"pipeline.evaluate_every": 2}, view="none").folder
    report = make_prm(folder, fit=PrmFit(epochs=2)).report
    scored = [group.key.id for group in read_groups(folder, split="train") if group.valid]
    assert sum(id.startswith("validation") for id in scored) == 4 * 4
    assert report.groups + report.heldout_groups == sum(id.startswith("t0") for id in scored) == 10
