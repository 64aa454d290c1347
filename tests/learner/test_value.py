"""The value head: the packed value loss is the plain one, it learns, and it comes back from a checkpoint to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_paths import credit_of, forest_of, relative, take_gradient, trees
from torch import Tensor

from treadle.algorithms.aggregation import SeqMeanTokenMean, TokenMean
from treadle.algorithms.credit import TokenCredit
from treadle.algorithms.losses import PpoClip
from treadle.core.errors import ConfigError, StoreError
from treadle.learner.config import LearnerConfig, ValueConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import pack
from treadle.learner.value import ValueHead, turn_starts
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest


def with_value(policy: Policy, at_once: int = 1024, **config: object) -> Learner:
    made = Learner(policy, LearnerConfig(lr=1e-3, tokens_per_pack=at_once, value=ValueConfig(**config)))  # type: ignore[arg-type]
    assert made.value is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.value.module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return made


def head_of(learner: Learner) -> ValueHead:
    assert learner.value is not None
    return learner.value


def states_before(policy: Policy, forest: Forest, row: int) -> Tensor:
    """[n, hidden] states that predict one action's tokens, by a plain forward over its whole context."""
    path, at = [], row
    while at >= 0:
        path.append(forest.segments[at].ids)
        at = int(forest.parent[at])
    ids = torch.from_numpy(np.concatenate(path[::-1])).long()
    n = len(forest.segments[row])
    return policy.hidden(ids, torch.arange(len(ids)), CausalPlan())[-n - 1 : -1]


def returns_of(forest: Forest, seed: int) -> Column:
    """Some tokens have a return, some do not."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(forest.tokens) < 0.3, np.nan, rng.normal(size=forest.tokens))


def head_gradient(head: ValueHead) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in head.module.parameters() if p.grad is not None]).clone()
    head.drop_gradients()
    return found


@pytest.mark.parametrize(
    ("budget", "at_once", "width", "clip"),
    [(1, 1024, None, None), (1, 7, 6, 0.05), (25, 1024, 6, None), (10_000, 10_000, 6, 0.05)],
)
def test_the_packed_value_loss_is_the_plain_one(
    policy64: Policy, budget: int, at_once: int, width: int | None, clip: float | None
) -> None:
    learner = with_value(policy64, at_once, width=width, clip=clip, coefficient=0.7)
    head, forest = head_of(learner), forest_of(trees(3))
    returns, nothing = returns_of(forest, 1), np.zeros(forest.tokens)
    forest = learner.annotate(forest, {"value"})
    forest.notes["value"][:] += 0.2  # as if the head had moved since: some are out of the clip's range
    weight, denominator = SeqMeanTokenMean().weights(forest)
    credit = TokenCredit(advantage=nothing, returns=returns)
    for batch in pack(forest, credit.collapse(forest, weight), denominator=denominator, budget_tokens=budget):
        learner.accumulate(batch, PpoClip())
    got, got_head = take_gradient(policy64), head_gradient(head)

    share, total = forest.up(forest.at_leaves(weight)), torch.zeros((), dtype=torch.float64)
    for row in np.flatnonzero(forest.action).tolist():
        own = slice(forest.start[row], forest.start[row + 1])
        target, old = (torch.from_numpy(column[own]) for column in (returns, forest.note("value")))
        known = ~target.isnan()
        target, old, value = target[known], old[known], head(states_before(policy64, forest, row))[known]
        error = (value - target).square()
        if clip is not None:
            error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target).square())
        total = total + 0.35 * share[row] * error.sum() / denominator
    total.backward()
    assert relative(got, take_gradient(policy64)) < 1e-12
    assert relative(got_head, head_gradient(head)) < 1e-12


def test_a_head_that_is_not_joint_leaves_the_policy_alone(policy64: Policy) -> None:
    learner, forest = with_value(policy64, joint=False), forest_of(trees(4))
    weight, denominator = TokenMean().weights(forest)
    credit = TokenCredit(advantage=np.zeros(forest.tokens), returns=np.ones(forest.tokens))
    for batch in pack(forest, credit.collapse(forest, weight), denominator=denominator, budget_tokens=100):
        learner.accumulate(batch, PpoClip())
    assert take_gradient(policy64).norm() == 0
    assert head_gradient(head_of(learner)).norm() > 0


def test_woven_tokens_teach_their_mean_return(policy64: Policy) -> None:
    """Without a clip the gradient of the mean is the sum of the gradients."""
    root = trees(5, 1)[0]
    forest = forest_of([root, root])
    weight, denominator = TokenMean().weights(forest)
    collapsed = TokenCredit(advantage=np.zeros(forest.tokens), returns=returns_of(forest, 2)).collapse(forest, weight)
    gradients = []
    for tolerance in (None, 0.0):
        learner = with_value(policy64, clip=None)
        packs = pack(forest, collapsed, denominator=denominator, budget_tokens=500, tolerance=tolerance)
        for batch in packs:
            learner.accumulate(batch, PpoClip())
        gradients.append(torch.cat([take_gradient(policy64), head_gradient(head_of(learner))]))
        assert sum(batch.tokens for batch in packs) > 0
    assert relative(gradients[1], gradients[0]) < 1e-12


def update(learner: Learner, forest: Forest, returns: Column) -> dict[str, float]:
    forest = learner.annotate(forest, {"value"})
    weight, denominator = TokenMean().weights(forest)
    credit = TokenCredit(advantage=credit_of(forest).advantage.mean() + 0 * returns, returns=returns)
    packs = pack(forest, credit.collapse(forest, weight), denominator=denominator, budget_tokens=200)
    return learner.update(packs, PpoClip()).stats


def test_it_learns_what_states_are_worth(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(lr=1e-4, value=ValueConfig(lr=0.03, clip=None)))
    forest = forest_of(trees(6))
    returns = np.full(forest.tokens, 0.7)
    errors = [update(learner, forest, returns)["value_error"] for _ in range(30)]
    assert errors[-1] < 0.05 * errors[0]


def test_a_new_head_values_everything_at_nothing(policy: Policy) -> None:
    learner = Learner(policy, LearnerConfig(value=ValueConfig(width=8)))
    noted = learner.annotate(forest_of(trees(7)), {"value"})
    assert np.nanmax(np.abs(noted.note("value"))) == 0


@pytest.mark.parametrize("width", [None, 8])
def test_a_restored_head_goes_on_to_the_last_bit(tmp_path, tiny_folder, width: int | None) -> None:
    def fresh() -> Learner:
        return Learner(Policy.load(tiny_folder), LearnerConfig(lr=1e-3, value=ValueConfig(width=width)))

    forest = forest_of(trees(8))
    returns = returns_of(forest, 3)
    learner = fresh()
    for _ in range(2):
        update(learner, forest, returns)
    learner.save(tmp_path / "saved")
    again = fresh()
    again.restore(tmp_path / "saved")
    for one in (learner, again):
        update(one, forest, returns)
    whole, resumed = head_of(learner).state(), head_of(again).state()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    ours, theirs = learner.policy.state(), again.policy.state()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_checkpoint_of_another_head_is_refused_in_one_line(tmp_path, tiny_folder) -> None:
    Learner(Policy.load(tiny_folder), LearnerConfig(value=ValueConfig(width=4))).save(tmp_path / "four")
    other = Learner(Policy.load(tiny_folder), LearnerConfig(value=ValueConfig(width=5)))
    with pytest.raises(StoreError, match=r"value head: got .*: set learner.value as it was"):
        other.restore(tmp_path / "four")
    Learner(Policy.load(tiny_folder), LearnerConfig()).save(tmp_path / "none")
    with pytest.raises(StoreError, match="cannot read"):
        other.restore(tmp_path / "none")


def test_at_the_level_of_turns_a_value_stands_where_an_action_begins(policy: Policy) -> None:
    learner, forest = Learner(policy, LearnerConfig(value=ValueConfig(level="turn"))), forest_of(trees(9))
    noted = learner.annotate(forest, {"value"})
    assert (~np.isnan(noted.note("value"))).sum() == turn_starts(forest).sum() == forest.action.sum()
    assert not np.isnan(noted.note("value")[forest.start[:-1][forest.action]]).any()


@pytest.mark.parametrize(("key", "value"), [("level", "step"), ("lr", 0.0), ("width", 0), ("clip", -1.0)])
def test_settings_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"value\.{key}: got {value!r}"):
        ValueConfig(**{key: value})  # type: ignore[arg-type]
