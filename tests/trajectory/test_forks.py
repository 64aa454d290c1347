"""Rollouts that share another one's start: what they have in common, what is their own, and what probes say."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import PathCredit, TokenCredit
from treadle.core.outcome import OK, Origin, failure
from treadle.core.ports import Completion, Finish
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.segment import Segment, Why


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def sampled(*tokens: int) -> Completion:
    n = len(tokens)
    return Completion(
        ids=ids(*tokens), logprobs=np.full(n, -1.0, np.float32), entropy=np.full(n, 0.5, np.float32),
        versions=((0, n),), kv_version=0, finish=Finish.STOP,
    )


class Tree:
    """A group whose first rollout acted once, was paid .25 for it, and was answered."""

    def __init__(self) -> None:
        self.group = Group(GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0))
        self.prompt = self.group.prompt(ids(1, 2, 3))
        self.first = self.group.begin(0).id
        self.action = self.group.sampled(self.first, sampled(10, 11), after=self.prompt, turn=0)
        self.group.pay(self.first, "step", 0.25, on=self.action)
        self.answer = self.group.observed(self.first, ids(4, 5), after=self.action, turn=0)

    def act(self, rollout: str, *tokens: int, reward: float) -> Segment:
        made = self.group.sampled(rollout, sampled(*tokens), after=self.answer, turn=1)
        self.group.pay(rollout, "score", reward)
        return made


def test_a_fork_has_the_shared_start_and_its_reward():
    tree = Tree()
    fork = tree.group.fork(tree.first, 1, at=tree.answer).id
    made = tree.act(fork, 20, reward=1.0)
    ended = tree.group.end(fork, OK)
    assert ended.reward == 1.25
    assert made.why is Why.FORK
    assert [s.id for s in tree.group.actions(fork)] == [tree.action.id, made.id]


def test_siblings_in_time_share_one_row_for_what_they_have_in_common():
    tree = Tree()
    fork = tree.group.fork(tree.first, 1, at=tree.answer).id
    tree.act(tree.first, 20, reward=0.0)
    tree.act(fork, 21, reward=1.0)
    for rollout in (tree.first, fork):
        tree.group.end(rollout, OK)
    forest = Forest.of([tree.group])
    assert len(forest) == 5
    assert forest.returns.tolist() == [0.25, 1.25]


def test_a_shared_start_keeps_its_reward_when_the_rollout_that_went_there_first_is_lost():
    tree = Tree()
    fork = tree.group.fork(tree.first, 1, at=tree.answer).id
    tree.act(fork, 21, reward=1.0)
    tree.group.end(tree.first, failure(Origin.INFRA, RuntimeError("lost")), scored=False)
    tree.group.end(fork, OK)
    assert Forest.of([tree.group]).returns.tolist() == [1.25]


def test_a_fork_that_did_nothing_of_its_own_does_not_train():
    tree = Tree()
    fork = tree.group.fork(tree.first, 1, at=tree.answer).id
    assert not tree.group.end(fork, OK).trains


def test_a_fork_at_the_prompt_shares_the_prompt():
    tree = Tree()
    fork = tree.group.fork(tree.first, 1, at=tree.prompt).id
    made = tree.group.sampled(fork, sampled(30), after=tree.prompt, turn=0)
    assert tree.group.rollouts[fork].leaves == (made.id,)
    assert tree.group.end(fork, OK).reward == 0.0


def test_a_fork_keeps_the_contexts_that_its_start_went_through():
    tree = Tree()
    compact = tree.group.observed(tree.first, ids(6), after=tree.answer, turn=0, why=Why.COMPACT, parent=tree.prompt)
    later = tree.group.sampled(tree.first, sampled(12), after=compact, turn=1)
    last = tree.group.observed(tree.first, ids(7), after=later, turn=1)
    assert tree.group.fork(tree.first, 1, at=last).leaves == (tree.answer.id, last.id)
    assert tree.group.fork(tree.first, 2, at=tree.answer).leaves == (tree.answer.id,)


def test_a_fork_at_an_action_or_beside_the_way_is_refused():
    tree = Tree()
    with pytest.raises(ValueError, match="an action: the world has not answered yet"):
        tree.group.fork(tree.first, 1, at=tree.action)
    other = tree.group.begin(2).id
    with pytest.raises(ValueError, match="not on its way"):
        tree.group.fork(other, 3, at=tree.answer)


def test_probes_have_no_rows_and_say_what_a_state_is_worth_from_there_on():
    tree = Tree()
    tree.act(tree.first, 20, reward=0.0)
    tree.group.end(tree.first, OK)
    for index, reward in ((1, 1.0), (2, 0.0), (3, 1.0)):
        probe = tree.group.fork(tree.first, index, at=tree.answer, probe=True).id
        tree.act(probe, 20 + index, reward=reward)
        tree.group.end(probe, OK)
    forest = Forest.of([tree.group])
    assert len(forest) == 4
    assert len(forest.rollouts) == 1
    worth = forest.probed[[s.id for s in forest.segments].index(tree.answer.id)]
    assert worth == pytest.approx(2 / 3)
    assert np.isnan(forest.probed).sum() == 3


def test_notes_are_numbers_per_token_and_a_missing_one_is_named():
    tree = Tree()
    tree.act(tree.first, 20, reward=0.0)
    tree.group.end(tree.first, OK)
    forest = Forest.of([tree.group])
    noted = forest.annotated("value", {tree.action.id: np.array([0.5, 0.25], np.float32)})
    assert noted.note("value")[3:5].tolist() == [0.5, 0.25]
    assert np.isnan(noted.note("value")[[0, 1, 2, 5, 6, 7]]).all()
    with pytest.raises(ValueError, match=r"no column .ref. .it has value.: who needs it must say so in `needs`"):
        noted.note("ref")
    with pytest.raises(ValueError, match="got 1 numbers for the 2 tokens"):
        forest.annotated("value", {tree.action.id: np.array([0.5], np.float32)})


def test_equal_state_keys_of_one_task_are_one_state():
    groups = []
    for ticket, task in enumerate(("t", "t", "u")):
        key = GroupKey(id=f"g{ticket}", ticket=ticket, task=task, family="", split="train", admitted_version=0)
        group = Group(key)
        rollout = group.begin(0).id
        group.sampled(rollout, sampled(1), after=group.prompt(ids(1)), turn=0, state_key="s")
        group.pay(rollout, "score", 1.0)
        group.end(rollout, OK)
        groups.append(group)
    assert Forest.of(groups).state.tolist() == [-1, 0, -1, 0, -1, 1]


def test_token_credit_collapses_to_what_the_same_numbers_per_rollout_collapse_to():
    tree = Tree()
    tree.act(tree.first, 20, 21, reward=0.0)
    tree.group.end(tree.first, OK)
    forest = Forest.of([tree.group])
    weight, _ = TokenMean().weights(forest)
    by_path = PathCredit(advantage=np.array([-2.0])).collapse(forest, weight)
    by_token = TokenCredit(advantage=np.full(forest.tokens, -2.0)).collapse(forest, weight)
    assert by_token.neg.tolist() == forest.spread(by_path.neg).tolist()
    assert by_token.mass.tolist() == forest.spread(by_path.mass).tolist()
