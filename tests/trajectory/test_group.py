"""Groups are the only door into the forest, and hold its invariants there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.outcome import OK, Origin, Outcome, Status, limit
from treadle.core.ports import Completion, Finish, Ids
from treadle.testing.random_forests import Growth, random_group
from treadle.trajectory.group import Group, GroupKey, NoSink, RewardRecord, Rollout
from treadle.trajectory.segment import Author, Segment, Why

SEEDS = st.integers(0, 2**32 - 1)
INFRA = Outcome(status=Status.ERROR, origin=Origin.INFRA)


def ids(*numbers: int) -> Ids:
    return np.array(numbers, dtype=np.int32)


def sampled(*numbers: int, version: int = 0, kv_version: int = 0) -> Completion:
    n = len(numbers)
    return Completion(
        ids=ids(*numbers), logprobs=np.full(n, -0.5, np.float32), entropy=np.full(n, 0.1, np.float32),
        versions=((version, n),), kv_version=kv_version, finish=Finish.STOP,
    )  # fmt: skip


def new_group(sink: Tape | None = None) -> Group:
    key = GroupKey(id="g7", ticket=7, task="t", family="f", split="train", admitted_version=0)
    return Group(key, sink=sink)


class Tape(NoSink):
    """Keeps every append in order."""

    def __init__(self) -> None:
        self.heard: list[Segment | RewardRecord | Rollout | GroupKey] = []

    def segment(self, segment: Segment) -> None:
        self.heard.append(segment)

    def reward(self, record: RewardRecord) -> None:
        self.heard.append(record)

    def rollout(self, rollout: Rollout) -> None:
        self.heard.append(rollout)

    def group(self, key: GroupKey) -> None:
        self.heard.append(key)


def test_the_prompt_is_stored_once_for_all_rollouts() -> None:
    group = new_group()
    first, second = group.prompt(ids(1, 2, 3)), group.prompt(ids(1, 2, 3))
    assert first is second
    assert first.rollout is None
    assert len(group.segments) == 1


def test_ids_are_kept_as_sampled_and_not_shared_with_a_copy() -> None:
    group = new_group()
    rollout = group.begin(0)
    completion = sampled(9, 8, 7)
    segment = group.sampled(rollout.id, completion, after=group.prompt(ids(1)), turn=0)
    assert segment.ids.dtype == np.int32
    assert segment.ids.tolist() == [9, 8, 7]
    assert segment.logprobs is completion.logprobs


def test_the_context_path_is_exactly_what_the_model_saw() -> None:
    group = new_group()
    rollout = group.begin(0).id
    seen = [1, 2, 3]
    last = group.prompt(ids(*seen))
    for turn, (said, answered) in enumerate([((10, 11), (20,)), ((12,), (21, 22))]):
        last = group.sampled(rollout, sampled(*said), after=last, turn=turn)
        seen += said
        assert group.context_ids(last.id).tolist() == seen
        last = group.observed(rollout, ids(*answered), after=last, turn=turn)
        seen += answered
        assert group.context_ids(last.id).tolist() == seen


def test_a_break_starts_a_new_context_and_keeps_time() -> None:
    group = new_group()
    rollout = group.begin(0).id
    prompt = group.prompt(ids(1))
    action = group.sampled(rollout, sampled(10), after=prompt, turn=0)
    summary = group.observed(rollout, ids(5, 6), after=action, turn=0, why=Why.COMPACT, parent=prompt)
    second = group.sampled(rollout, sampled(11), after=summary, turn=1)
    assert group.context_ids(second.id).tolist() == [1, 5, 6, 11]
    assert summary.after == action.id
    assert group.rollouts[rollout].leaves == (action.id, second.id)
    assert group.segments[action.id] is action


def test_a_plain_rollout_has_one_leaf() -> None:
    group = new_group()
    rollout = group.begin(0).id
    action = group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    seen = group.observed(rollout, ids(3), after=action, turn=0)
    assert group.rollouts[rollout].leaves == (seen.id,)


def test_a_reward_on_an_observation_moves_to_the_action_before_it() -> None:
    group = new_group()
    rollout = group.begin(0).id
    action = group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    first = group.observed(rollout, ids(3), after=action, turn=0)
    second = group.observed(rollout, ids(4), after=first, turn=0)
    assert group.pay(rollout, "step", 0.5, on=second).segment == action.id
    assert group.pay(rollout, "score", 1.0).segment == action.id


def test_a_reward_after_a_break_moves_to_the_action_before_it_in_time() -> None:
    group = new_group()
    rollout = group.begin(0).id
    prompt = group.prompt(ids(1))
    action = group.sampled(rollout, sampled(10), after=prompt, turn=0)
    summary = group.observed(rollout, ids(5), after=action, turn=0, why=Why.COMPACT, parent=prompt)
    assert group.pay(rollout, "score", 1.0, on=summary).segment == action.id


def test_a_reward_with_no_action_before_it_is_refused() -> None:
    group = new_group()
    rollout = group.begin(0).id
    with pytest.raises(ValueError, match="no action before it"):
        group.pay(rollout, "score", 1.0)
    with pytest.raises(ValueError, match="no action before it"):
        group.pay(rollout, "score", 1.0, on=group.prompt(ids(1)))


def test_a_rollouts_reward_is_the_sum_of_the_parts_that_train() -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    group.pay(rollout, "correct", 1.0)
    group.pay(rollout, "turns", -0.25)
    group.pay(rollout, "seen", 9.0, train=False)
    ended = group.end(rollout, OK)
    assert ended.reward == 0.75
    assert ended.rewards == {"correct": 1.0, "turns": -0.25, "seen": 9.0}


@pytest.mark.parametrize(("outcome", "scored"), [(INFRA, True), (OK, False), (INFRA, False)])
def test_not_scored_is_none_and_not_zero(outcome: Outcome, scored: bool) -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    group.pay(rollout, "step", 1.0)
    ended = group.end(rollout, outcome, scored=scored)
    assert ended.reward is None
    assert ended.rewards == {}
    assert not ended.trains


def test_a_rollout_without_an_action_does_not_train() -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.prompt(ids(1))
    assert not group.end(rollout, limit("context")).trains
    assert group.valid == []


def test_an_ended_rollout_takes_nothing_more() -> None:
    group = new_group()
    rollout = group.begin(0).id
    prompt = group.prompt(ids(1))
    group.end(rollout, INFRA)
    with pytest.raises(ValueError, match="takes no more segments"):
        group.sampled(rollout, sampled(10), after=prompt, turn=0)
    with pytest.raises(ValueError, match="ended before, as error"):
        group.end(rollout, OK)


def test_an_ended_rollout_takes_no_more_reward() -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    group.end(rollout, OK)
    with pytest.raises(ValueError, match="takes no more reward"):
        group.pay(rollout, "late", 1.0)


def test_a_reward_that_is_not_a_number_is_refused() -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.sampled(rollout, sampled(10), after=group.prompt(ids(1)), turn=0)
    with pytest.raises(ValueError, match="reward score=nan"):
        group.pay(rollout, "score", float("nan"))


def test_attempts_of_one_index_are_different_rollouts() -> None:
    group = new_group()
    assert group.begin(0).id != group.begin(0, attempt=1).id
    with pytest.raises(ValueError, match="was begun before"):
        group.begin(0)


def test_segments_of_another_group_are_refused() -> None:
    group, other = new_group(), new_group()
    rollout = group.begin(0).id
    with pytest.raises(ValueError, match="is not a segment of group"):
        group.sampled(rollout, sampled(10), after=other.prompt(ids(1)), turn=0)


def test_the_oldest_version_counts_only_what_trains() -> None:
    group = new_group()
    prompt = group.prompt(ids(1))
    for index, (version, kv, outcome) in enumerate([(4, 3, OK), (9, 9, OK), (1, 0, INFRA)]):
        rollout = group.begin(index).id
        group.sampled(rollout, sampled(10, version=version, kv_version=kv), after=prompt, turn=0)
        group.end(rollout, outcome)
    assert group.oldest_version == 3


def test_nothing_sampled_has_no_version() -> None:
    group = new_group()
    rollout = group.begin(0).id
    group.demonstrated(rollout, ids(4), after=group.prompt(ids(1)), turn=0)
    group.end(rollout, OK)
    assert group.oldest_version is None


@given(seed=SEEDS)
def test_for_all_groups_any_prefix_of_the_appends_is_a_forest(seed: int) -> None:
    tape = Tape()
    random_group(np.random.default_rng(seed), Growth(demonstration=0.2), sink=tape)
    assert isinstance(tape.heard[0], GroupKey)
    known: set[str] = set()
    for heard in tape.heard[1:]:
        if isinstance(heard, Segment):
            assert {p for p in (heard.parent, heard.after) if p is not None} <= known
            known.add(heard.id)
        elif isinstance(heard, Rollout):
            assert set(heard.leaves) <= known
        else:
            assert isinstance(heard, RewardRecord)
            assert heard.segment in known


@given(seed=SEEDS)
def test_for_all_groups_rewards_sit_on_actions(seed: int) -> None:
    group = random_group(np.random.default_rng(seed), Growth(demonstration=0.2))
    assert all(group.segments[record.segment].is_action for record in group.records)


@given(seed=SEEDS)
def test_for_all_groups_the_context_path_concatenates_the_segments_of_one_context(seed: int) -> None:
    group = random_group(np.random.default_rng(seed), Growth(breaks=0.5))
    for segment in group.segments.values():
        before = group.context_ids(segment.parent).tolist() if segment.parent else []
        assert group.context_ids(segment.id).tolist() == [*before, *segment.ids.tolist()]


@given(seed=SEEDS)
def test_for_all_groups_only_what_the_policy_sampled_has_logprobs_and_versions(seed: int) -> None:
    group = random_group(np.random.default_rng(seed), Growth(demonstration=0.5))
    for s in group.segments.values():
        sampled_here = s.author is Author.POLICY
        assert (s.logprobs is not None, bool(s.versions), s.oldest_version is not None) == (sampled_here,) * 3


@given(SEEDS)
def test_a_copy_tells_nobody_and_leaves_the_group_as_it_was(seed: int) -> None:
    group = random_group(np.random.default_rng(seed))
    tape = Tape()
    before = (dict(group.segments), dict(group.rollouts), list(group.records))
    copied = group.onward(tape).like(rollouts={})
    assert copied.key == group.key
    assert (copied.segments, copied.rollouts, copied.records) == (before[0], {}, before[2])
    copied.prompt(ids(1, 2, 3))
    assert tape.heard == []
    assert (group.segments, group.rollouts, group.records) == before


def test_actions_of_a_rollout_are_its_turns_in_time_across_a_context_break() -> None:
    group = new_group()
    prompt = group.prompt(ids(1))
    rollout, sibling = group.begin(0), group.begin(1)
    first = group.sampled(rollout.id, sampled(5), after=prompt, turn=0)
    group.sampled(sibling.id, sampled(6), after=prompt, turn=0)
    again = group.observed(rollout.id, ids(7), after=first, turn=0, why=Why.COMPACT, parent=prompt)
    second = group.sampled(rollout.id, sampled(8), after=again, turn=1)
    assert group.actions(rollout.id) == [first, second]
    assert group.path(second.id) == [prompt, again, second]
    assert group.actions(group.begin(2).id) == []
