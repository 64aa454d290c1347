"""The process reward model: it learns what nodes are worth, comes back from its folder, and pays what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from treadle.core.errors import ConfigError
from treadle.learner.config import LearnerConfig, PrmConfig
from treadle.learner.prm import PrmFit, PrmTrainer, auc
from treadle.learner.process_reward import ProcessReward, judged
from treadle.models.policy import Policy
from treadle.testing.forests import Node, grow
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author

GOOD, BAD = 40, 90


def told_apart(seed: int) -> Forest:
    """Two turns: a good first word is worth 1, a bad one 0, and the second turn shows it again."""
    rng = np.random.default_rng(seed)

    def play(index: int, good: bool) -> Node:
        word, noise = GOOD if good else BAD, int(rng.integers(100, 200))
        last = Node(name=f"b{index}", author=Author.POLICY, ids=(noise, word), reward=float(good))
        seen = Node(name=f"e{index}", author=Author.ENV, ids=(5, noise), children=(last,))
        return Node(name=f"a{index}", author=Author.POLICY, ids=(noise, word), children=(seen,))

    root = Node(
        name="prompt", author=Author.ENV, ids=(3, int(rng.integers(100, 200)), 4),
        children=tuple(play(i, i % 2 == 0) for i in range(4)),
    )
    return Forest.of([grow(root, id=f"g{seed}", ticket=seed).group])


@pytest.fixture(scope="module")
def forests() -> list[Forest]:
    return [told_apart(seed) for seed in range(10)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_folder, forests):
    trainer = PrmTrainer(Policy.load(tiny_folder), PrmFit(), LearnerConfig())
    report = trainer.fit(forests)
    folder = tmp_path_factory.mktemp("prm") / "prm"
    trainer.save(folder, report)
    return folder, report, trainer


def reward(folder, vocab: int, **config) -> ProcessReward:
    return ProcessReward(PrmConfig(folder=str(folder), **config), LearnerConfig(), dtype="float32", vocab=vocab)


def test_it_tells_good_nodes_from_bad_ones_in_groups_that_it_never_saw(saved) -> None:
    _, report, _ = saved
    assert (report.groups, report.heldout_groups) == (8, 2)
    assert report.heldout_nodes == 2 * 9
    assert report.correlation > 0.95
    assert report.auc == 1.0
    assert report.error < 0.1 * report.mean_error


def test_layers_may_train_with_the_head(tiny_folder, forests) -> None:
    policy = Policy.load(tiny_folder)
    before = policy.module.get_decoder().layers[-1].mlp.up_proj.weight.detach().clone()
    report = PrmTrainer(policy, PrmFit(layers=1, epochs=15, width=8), LearnerConfig()).fit(forests)
    assert not before.equal(policy.module.get_decoder().layers[-1].mlp.up_proj.weight)
    assert report.correlation is not None
    assert report.correlation > 0.8


def test_what_was_saved_says_the_same(saved, forests, policy: Policy) -> None:
    folder, _, trainer = saved
    assert reward(folder, policy.dims.vocab).values(forests[9]) == pytest.approx(trainer.values(forests[9]), abs=1e-5)


def test_differences_add_up_to_the_last_value_minus_the_first(saved, forests, policy: Policy) -> None:
    folder, _, _ = saved
    model, forest = reward(folder, policy.dims.vocab, coefficient=2.0), forests[9]
    values, paid = model.values(forest), model.rewarded(forest)
    more = paid.returns - forest.returns
    assert more == pytest.approx(2 * (values[forest.rollout_leaf] - values[0]))
    assert (paid.reward - forest.reward)[~forest.action] == pytest.approx(0)


def test_values_pay_what_the_state_behind_an_action_is_worth(saved, forests, policy: Policy) -> None:
    folder, _, _ = saved
    model, forest = reward(folder, policy.dims.vocab, by="value"), forests[4]
    assert (model.rewarded(forest).reward - forest.reward)[forest.action] == pytest.approx(
        model.values(forest)[forest.action]
    )


def test_the_model_is_loaded_when_it_is_first_asked(saved, forests, policy: Policy, tmp_path) -> None:
    folder, _, _ = saved
    for name in ("prm.json", "head.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "model").mkdir()
    made = reward(tmp_path, policy.dims.vocab)
    with pytest.raises(Exception, match="model"):
        made.values(forests[0])


def test_a_folder_that_holds_no_model_is_refused_in_one_line(saved, tmp_path, policy: Policy) -> None:
    folder, _, _ = saved
    with pytest.raises(ConfigError, match=r"no readable prm\.json .*expected a folder that `treadle prm RUN` wrote"):
        reward(tmp_path, policy.dims.vocab)
    (tmp_path / "prm.json").write_bytes((folder / "prm.json").read_bytes())
    with pytest.raises(ConfigError, match=r"it lacks head\.safetensors"):
        reward(tmp_path, policy.dims.vocab)


def test_a_model_of_other_tokens_is_refused(saved) -> None:
    with pytest.raises(ConfigError, match="it reads a vocabulary of 259 tokens, the policy has 7"):
        reward(saved[0], 7)


def test_a_head_of_another_width_is_refused(saved, tmp_path, policy: Policy, forests) -> None:
    folder, _, _ = saved
    facts = json.loads((folder / "prm.json").read_text())
    (tmp_path / "prm.json").write_text(json.dumps({**facts, "hidden": 17}))
    (tmp_path / "head.safetensors").write_bytes((folder / "head.safetensors").read_bytes())
    (tmp_path / "model").symlink_to(folder / "model")
    with pytest.raises(ConfigError, match="the head is 17 wide, the model 32"):
        reward(tmp_path, policy.dims.vocab).values(forests[0])


def test_too_few_groups_and_equal_values_are_refused(tiny_folder, forests) -> None:
    def trainer() -> PrmTrainer:
        return PrmTrainer(Policy.load(tiny_folder), PrmFit(), LearnerConfig())

    with pytest.raises(ConfigError, match="got 4 groups that were scored, expected at least 5"):
        trainer().fit(forests[:4])
    flat = Forest.of([grow(Node(name="p", author=Author.ENV, ids=(3, 4), children=(
        Node(name="a", author=Author.POLICY, ids=(5,), reward=1.0),
    ))).group])
    with pytest.raises(ConfigError, match="have the value 1: there is nothing to learn"):
        trainer().fit([flat] * 5)


def test_what_is_judged_are_actions_and_the_prompt(forests) -> None:
    assert judged(forests[0]).sum() == 1 + 8


def test_auc_counts_pairs_and_halves_ties() -> None:
    score, good = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, True])
    assert auc(score, good) == pytest.approx((1 + 0.5 + 2) / 4)
    assert auc(score, np.ones(4, dtype=bool)) is None
