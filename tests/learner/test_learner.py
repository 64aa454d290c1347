"""Updates: what changes, when, and what is reported."""

from __future__ import annotations

import dataclasses
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import Nll, PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.errors import ConfigError, DeadlineExceeded, StoreError
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.testing.forests import Node, grow
from treadle.testing.random_forests import Growth, random_groups
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author


def on_policy(learner: Learner, seed: int = 1, budget: int = 40) -> list[PackedBatch]:
    """Packs of a random forest whose behaviour log-probs are those of the policy now."""
    forest = Forest.of(random_groups(seed, 3, Growth(vocabulary=200, failure=0.0)))
    now = learner.logprobs(forest)
    segments = tuple(
        dataclasses.replace(s, logprobs=now[s.id]) if s.author is Author.POLICY else s for s in forest.segments
    )
    forest = dataclasses.replace(forest, segments=segments)
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=budget)


def demonstrations() -> list[PackedBatch]:
    shown = Node(name="d", author=Author.DEMO, ids=(70, 71, 72, 73))
    prompt = Node(name="p", author=Author.ENV, ids=(5, 6, 7), children=(shown,))
    forest = Forest.of([grow(prompt).group])
    collapsed, denominator = assign(forest, RULES["imitation"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=100)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.module.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_an_update_changes_every_weight_and_makes_one_version(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=1e-3))
    packs, before = on_policy(learner), weights(policy)
    report = learner.update(packs, PpoClip())
    assert report.version == policy.version == 1
    assert not any(torch.equal(before[name], after) for name, after in weights(policy).items())
    assert report.skipped == ""


def test_the_report_counts_tokens_and_says_on_policy(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=1e-3, max_grad_norm=None))
    packs = on_policy(learner)
    report = learner.update(packs, PpoClip())
    assert report.packs == len(packs) > 1
    assert report.tokens_forward == sum(batch.tokens for batch in packs)
    assert report.tokens_trained == sum(batch.edges for batch in packs)
    assert report.stats["ratio"] == pytest.approx(1, abs=1e-4)
    assert report.stats["kl"] == pytest.approx(0, abs=1e-6)
    assert report.stats["clip_share"] == report.stats["dual_clip_share"] == 0
    assert report.grad_norm > 0
    assert report.seconds >= 0


def test_imitation_makes_the_demonstration_likelier(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=1e-2))
    losses = [learner.update(demonstrations(), Nll()).loss for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def test_a_positive_advantage_makes_an_action_likelier(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=3e-3))
    packs = on_policy(learner)

    def mean_by_sign() -> tuple[float, float]:
        good, bad = [], []
        for batch in packs:
            with torch.no_grad():
                states = learner.scorer.forward(batch)[batch.src]
                logp = learner.scorer.head.logprobs(states, batch.ids[batch.tgt])
            gain = logp - batch.terms.old
            good += gain[(batch.terms.pos_w > 0) & (batch.terms.neg_w == 0)].tolist()
            bad += gain[(batch.terms.neg_w < 0) & (batch.terms.pos_w == 0)].tolist()
        return float(np.mean(good)), float(np.mean(bad))

    learner.update(packs, PpoClip())
    good, bad = mean_by_sign()
    assert good > 0 > bad


def test_a_gradient_that_is_not_finite_is_dropped_and_reported(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=1e-3))
    packs, before = on_policy(learner), weights(policy)
    packs[0].terms.pos_w[0] = math.inf
    report = learner.update(packs, PpoClip())
    assert "gradient norm is" in report.skipped
    assert report.version == 0
    assert same(before, weights(policy))
    assert learner.update(on_policy(learner), PpoClip()).version == 1


def test_an_update_without_edges_is_skipped(policy: Policy):
    learner = Learner(policy, LearnerConfig())
    before = weights(policy)
    report = learner.update([], PpoClip())
    assert report.skipped == "nothing to train"
    assert report.version == 0
    assert same(before, weights(policy))


def test_clipping_bounds_the_step_but_reports_the_norm_before(policy: Policy):
    learner = Learner(policy, LearnerConfig(lr=1e-3, max_grad_norm=1e-3))
    seen: list[float] = []
    step = learner.optimiser.step

    def record() -> None:
        seen.append(math.sqrt(sum(float(p.grad.square().sum()) for p in policy.module.parameters())))
        step()

    learner.optimiser.step = record  # type: ignore[method-assign]
    report = learner.update(on_policy(learner), PpoClip())
    assert report.grad_norm > 1e-3
    assert seen == pytest.approx([1e-3], rel=1e-3)


def test_gradients_do_not_leak_into_the_next_update(policy: Policy, tiny_folder: Path):
    learner = Learner(policy, LearnerConfig(lr=1e-3))
    packs = on_policy(learner)

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.update(packs, PpoClip(), between=stop)
    assert policy.version == 0
    fresh = Learner(Policy.load(tiny_folder), LearnerConfig(lr=1e-3))
    assert learner.update(packs, PpoClip()).grad_norm == fresh.update(packs, PpoClip()).grad_norm


def test_progress_is_told_between_packs(policy: Policy):
    learner = Learner(policy, LearnerConfig())
    packs, told = on_policy(learner), list[tuple[int, int]]()
    learner.update(packs, PpoClip(), between=lambda done, of: told.append((done, of)))
    assert told == [(i + 1, len(packs)) for i in range(len(packs))]


def test_ppo_refuses_tokens_that_nobody_sampled(policy: Policy):
    with pytest.raises(ValueError, match="ppo_clip needs behaviour log-probs"):
        Learner(policy, LearnerConfig()).update(demonstrations(), PpoClip())


def test_weights_change_only_while_no_forward_reads_them(policy: Policy):
    learner = Learner(policy, LearnerConfig(gate_timeout_s=0.05))
    packs = on_policy(learner)
    reading, leave = threading.Event(), threading.Event()

    def read() -> None:
        with policy.gate.read("engine.step"):
            reading.set()
            leave.wait(60)

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait(60)
    before = weights(policy)
    try:
        with pytest.raises(DeadlineExceeded, match=r"learner\.step.*engine\.step"):
            learner.update(packs, PpoClip())
    finally:
        leave.set()
        reader.join()
    assert same(before, weights(policy))
    assert learner.update(packs, PpoClip()).version == 1


def test_equal_updates_give_equal_weights_bit_for_bit(tiny_folder: Path):
    ends = []
    for _ in range(2):
        learner = Learner(Policy.load(tiny_folder), LearnerConfig(lr=1e-3))
        for seed in (1, 2):
            learner.update(on_policy(learner, seed), PpoClip())
        ends.append(weights(learner.policy))
    assert same(*ends)


def test_log_probs_cover_every_action_token(policy: Policy):
    forest = Forest.of(random_groups(4, 2, Growth(vocabulary=200, demonstration=0.3)))
    found = Learner(policy, LearnerConfig(tokens_per_pack=30)).logprobs(forest)
    assert sorted(found) == sorted(s.id for s in forest.segments if s.is_action)
    for segment in forest.segments:
        if segment.is_action:
            assert found[segment.id].shape == (len(segment),)
            assert (found[segment.id] < 0).all()


def test_publishing_shared_tensors_names_the_version_only(policy: Policy):
    learner = Learner(policy, LearnerConfig())
    learner.update(on_policy(learner), PpoClip())
    ref = learner.publish()
    assert (ref.version, ref.path, ref.checksum) == (1, None, None)


def test_a_restored_learner_goes_on_bit_for_bit(tiny_folder: Path, tmp_path: Path):
    config = LearnerConfig(lr=1e-3, schedule="linear", total_updates=4, weight_decay=0.1)
    learner = Learner(Policy.load(tiny_folder), config)
    packs = on_policy(learner)
    learner.update(packs, PpoClip())
    learner.save(tmp_path / "kept")
    other = Learner(Policy.load(tiny_folder), config)
    other.restore(tmp_path / "kept")
    assert (other.updates, other.policy.version) == (1, 1)
    for _ in range(2):
        one, two = learner.update(packs, PpoClip()), other.update(packs, PpoClip())
        assert (one.loss, one.lr, one.version) == (two.loss, two.lr, two.version)
    assert same(weights(learner.policy), weights(other.policy))


def test_saving_again_replaces_and_leaves_nothing_else(policy: Policy, tmp_path: Path):
    learner = Learner(policy, LearnerConfig(lr=1e-3))
    for _ in range(2):
        learner.update(demonstrations(), Nll())
        learner.save(tmp_path / "kept")
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["learner.json", "model", "optimiser.safetensors"]
    learner.restore(tmp_path / "kept")
    assert learner.updates == 2


def test_a_folder_that_is_no_checkpoint_is_refused(policy: Policy, tmp_path: Path):
    with pytest.raises(StoreError, match="cannot read"):
        Learner(policy, LearnerConfig()).restore(tmp_path)


def test_a_checkpoint_of_another_format_is_refused(policy: Policy, tmp_path: Path):
    learner = Learner(policy, LearnerConfig())
    learner.save(tmp_path / "kept")
    (tmp_path / "kept" / "learner.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(StoreError, match="got format 99"):
        learner.restore(tmp_path / "kept")


def test_the_rate_warms_up_and_decays():
    linear = LearnerConfig(lr=1.0, warmup_updates=2, schedule="linear", total_updates=6)
    assert [linear.rate(i) for i in range(7)] == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0])
    cosine = LearnerConfig(lr=1.0, schedule="cosine", total_updates=4)
    assert [cosine.rate(i) for i in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert LearnerConfig(lr=2.0).rate(100) == 2.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_no_update_of_a_schedule_is_wasted_on_a_rate_of_zero(schedule: str):
    for updates in (1, 2, 48):
        config = LearnerConfig(lr=1.0, schedule=schedule).over(updates)
        rates = [config.rate(k) for k in range(updates)]
        assert rates[0] == 1.0
        assert min(rates) == rates[-1] > 0
        assert config.rate(updates) == 0


def test_a_linear_schedule_falls_by_the_same_step_at_every_update():
    config = LearnerConfig(lr=2.0, schedule="linear").over(5)
    assert [config.rate(k) for k in range(5)] == pytest.approx([2 * (1 - k / 5) for k in range(5)])


def test_a_length_that_was_set_is_kept():
    config = LearnerConfig(schedule="linear", total_updates=7)
    assert config.over(3) is config
    assert LearnerConfig().over(3).total_updates == 3


def test_a_learner_whose_schedule_has_no_length_is_refused(policy: Policy):
    with pytest.raises(ConfigError, match=r"learner\.total_updates: got None, expected a number for schedule 'linear'"):
        Learner(policy, LearnerConfig(schedule="linear"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"lr": 0.0}, "lr"), ({"schedule": "step"}, "schedule"), ({"total_updates": 0}, "total_updates"),
        ({"attention": "flash"}, "attention"), ({"tokens_per_pack": 0}, "tokens_per_pack"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"), ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], key: str):
    with pytest.raises(ConfigError, match=f"learner.{key}"):
        LearnerConfig(**settings)  # type: ignore[arg-type]
