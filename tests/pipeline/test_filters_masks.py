"""Filters of rollouts: what they leave out, what of a group trains then, and when nothing does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.limits import Rewards
from treadle.algorithms.aggregation import SeqMeanTokenMean, TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.group_baseline import Grpo, Rloo
from treadle.algorithms.vine import Vine
from treadle.core.errors import ConfigError
from treadle.core.outcome import OK, Origin, Outcome, Status, limit, tool_timeout
from treadle.core.ports import Completion, Finish
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.filters import DropEqualRewards, EnoughValid, Verdict, ZeroVariance, judge, without
from treadle.pipeline.loop import default_filters
from treadle.pipeline.masks import (
    FILTERS,
    Duplicates,
    MaskDuplicates,
    MaskOverlong,
    MaskUnprobed,
    MaskVoidTurns,
    Overlong,
    Unprobed,
    VoidTurns,
)
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.segment import Span

INFRA = Outcome(status=Status.ERROR, origin=Origin.INFRA)
REWARDS = Rewards(main="correct")


def said(ids, version=0):
    n = len(ids)
    return Completion(
        ids=np.array(ids, np.int32), logprobs=np.full(n, -1.0, np.float32), entropy=np.ones(n, np.float32),
        versions=((version, n),), kv_version=version, finish=Finish.STOP,
    )


def play(*, turns=(("code", (5, 6)),), end=OK, score=1.0, version=0):
    """A rollout to be: (kind of part, ids) for each turn; a kind of "" is a turn without any part."""
    return turns, end, score, version


def group_of(*plays, ticket=0):
    group = Group(GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=0))
    prompt = group.prompt(np.array([1, 2], np.int32))
    for index, (turns, end, score, version) in enumerate(plays):
        rollout, at = group.begin(index).id, prompt
        for turn, (kind, ids) in enumerate(turns):
            if turn:
                at = group.observed(rollout, np.array([3], np.int32), after=at, turn=turn - 1)
            spans = (Span(kind, 0, len(ids)),) if kind else ()
            at = group.sampled(rollout, said(ids, version), after=at, turn=turn, spans=spans)
        if end.trains:
            group.pay(rollout, "correct", score)
        group.end(rollout, end)
    return group


def indices(masks):
    return sorted(int(rollout.split(".")[1]) for rollout in masks)


# -- overlong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["turns", "tokens", "context", "env", "budget"])
def test_a_rollout_that_a_limit_ended_is_left_out(kind):
    group = group_of(play(), play(end=limit(kind)), play(score=0.0))
    assert Overlong(least=2).masks(group) == {"t0.1.0": "overlong"}


def test_only_the_limits_that_are_named_count():
    group = group_of(play(end=limit("turns")), play(end=limit("tokens")), play())
    assert indices(Overlong(least=2, limits=("tokens",)).masks(group)) == [1]


def test_a_time_out_that_the_policy_caused_is_not_overlong():
    assert Overlong(least=2).masks(group_of(play(end=tool_timeout("slow")), play())) == {}


# -- void turns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "end", "void"),
    [
        ((("code", (5,)), ("code", (6,))), OK, False),
        ((("code", (5,)), ("text", (6,))), OK, False),  # the world took it as the answer
        ((("text", (5,)), ("code", (6,))), OK, True),
        ((("", (5,)), ("call", (6,))), OK, True),
        ((("thought", (5,)), ("call", (6,))), OK, True),
        ((("call", (5,)), ("text", (6,))), limit("turns"), True),
        ((("call", (5,)), ("call", (6,))), limit("turns"), False),
        ((("code", (5,)), ("code", (6,))), limit("tokens"), True),  # the last turn was cut off and not run
        ((("code", (5,)), ("code", (6,))), limit("context"), False),
    ],
)
def test_a_turn_is_void_when_the_world_had_nothing_to_act_on(turns, end, void):
    group = group_of(play(turns=turns, end=end), play(), play(score=0.0))
    assert indices(VoidTurns(least=2).masks(group)) == ([0] if void else [])


def test_where_the_world_reads_plain_text_any_text_is_an_action():
    talk = play(turns=(("text", (5,)), ("text", (6,))))
    think = play(turns=(("thought", (5,)), ("text", (6,))))
    group = group_of(talk, think)
    assert indices(VoidTurns(least=1).masks(group)) == [0, 1]
    assert indices(VoidTurns(least=1, parts=("text", "code", "call")).masks(group)) == [1]


# -- duplicates ------------------------------------------------------------------------------------------------


def test_of_equal_rollouts_the_first_ones_stay():
    group = group_of(play(score=0.0), play(), play(turns=(("code", (5, 7)),)), play())
    assert indices(Duplicates(least=2).masks(group)) == [1, 3]
    assert indices(Duplicates(least=2, keep=2).masks(group)) == [3]


def test_turns_are_compared_one_by_one():
    split = play(turns=(("code", (5,)), ("code", (6,))))
    other = play(turns=(("code", (5, 6)),))
    assert Duplicates(least=2).masks(group_of(split, other)) == {}


def test_failed_rollouts_are_no_duplicates():
    assert Duplicates(least=2).masks(group_of(play(end=INFRA), play(), play(score=0.0))) == {"t0.2.0": "duplicate"}


# -- what is left ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Grpo(), Rloo()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("average", [TokenMean(), SeqMeanTokenMean()], ids=lambda average: average.name)
def test_what_is_left_out_has_no_vote_no_loss_and_no_mass(rule, average):
    plays = [play(turns=(("code", (5, 6)),)), play(turns=(("code", (7,)),), score=0.25),
             play(turns=(("code", (8, 9, 9)),), score=0.0)]  # fmt: skip
    late = play(turns=(("code", (4, 4, 4, 4)),), end=limit("turns"), score=9.0)
    with_it = group_of(plays[0], plays[1], late, plays[2])
    found = judge([Overlong(least=2)], with_it)
    assert (found.reason, found.masked) == (None, {"t0.2.0": "overlong"})
    got, denominator = assign(Forest.of([found.group]), rule, average)
    want, wanted = assign(Forest.of([group_of(*plays)]), rule, average)
    assert denominator == wanted
    for column in ("pos", "neg", "mass"):
        assert getattr(got, column).tolist() == getattr(want, column).tolist()


def test_the_group_itself_stays_as_it_is():
    group = group_of(play(), play(end=limit("turns")), play(score=0.0))
    left = without(group, {"t0.1.0"})
    assert [r.index for r in left.valid] == [0, 2]
    assert [r.index for r in group.valid] == [0, 1, 2]
    assert left.key == group.key


def test_tokens_that_are_left_out_make_nobody_stale():
    group = group_of(play(version=4), play(version=1, end=limit("turns")), play(version=5, score=0.0))
    assert (group.oldest_version, judge([Overlong(least=2)], group).group.oldest_version) == (1, 4)


def test_a_group_of_which_too_little_is_left_is_dropped_under_the_name_of_the_filter():
    late = play(end=limit("turns"))
    group = group_of(play(), late, late, late)
    assert judge([Overlong(least=2)], group).reason == "overlong"
    assert judge([Overlong(least=1)], group).reason is None
    assert judge([Overlong(least=1)], group_of(late, late)).reason == "overlong"


def test_filters_see_what_those_before_them_left():
    """The first two say the same; once the first is over its limit, the second has no double."""
    group = group_of(play(end=limit("turns")), play(), play(turns=(("code", (9,)),), score=0.0))
    both = judge([Overlong(least=2), Duplicates(least=2)], group)
    assert (both.reason, both.masked) == (None, {"t0.0.0": "overlong"})
    assert judge([Duplicates(least=2)], group).masked == {"t0.1.0": "duplicate"}


def test_groups_are_compared_without_what_is_left_out():
    group = group_of(play(), play(), play(score=0.0, end=limit("turns")))
    assert judge([ZeroVariance(rewards=REWARDS)], group).reason is None
    assert judge([Overlong(least=2), ZeroVariance(rewards=REWARDS)], group).reason == "zero_variance"


def test_what_is_left_out_is_no_failure():
    """Three of four are valid, which min_valid=0.75 takes; that one of them is over its limit changes nothing."""
    group = group_of(play(), play(score=0.0), play(end=limit("turns")), play(end=INFRA))
    filters = [EnoughValid(group_size=4, min_valid=0.75, min_rollouts=2), Overlong(least=2)]
    assert judge(filters, group).reason is None


@given(st.lists(st.tuples(st.sampled_from(["ok", "turns", "tokens", "lost"]), st.integers(0, 1), st.integers(0, 2)),
                min_size=1, max_size=6))
def test_for_all_groups_a_second_verdict_is_the_first_and_what_trains_was_not_left_out(members):
    ends = {"ok": OK, "turns": limit("turns"), "tokens": limit("tokens"), "lost": INFRA}
    group = group_of(*(play(end=ends[e], score=float(s), turns=(("code", (5 + t,)),)) for e, s, t in members))
    filters = default_filters(
        PipelineConfig(group_size=len(members), min_valid=0.01, filters=tuple(kind() for kind in FILTERS.values())),
        rewards=REWARDS, min_rollouts=2,
    )
    first, again = judge(filters, group), judge(filters, group)
    assert (first.reason, first.masked) == (again.reason, again.masked)
    trains = {r.id for r in first.group.valid}
    assert trains.isdisjoint(first.masked)
    assert trains | set(first.masked) == {r.id for r in group.valid}
    if first.reason is None:
        assert len(trains) >= 2


# -- plans -----------------------------------------------------------------------------------------------------


def test_the_names_are_the_plans_and_their_reasons():
    assert {name: kind().name for name, kind in FILTERS.items()} == {name: name for name in FILTERS}
    assert list(FILTERS) == ["zero_variance", "overlong", "void_turn", "duplicate", "unprobed"]


def test_by_default_only_equal_rewards_are_dropped():
    config = PipelineConfig()
    assert config.filters == (DropEqualRewards(),)
    kinds = [type(one) for one in default_filters(config, rewards=REWARDS, min_rollouts=2)]
    assert kinds == [EnoughValid, ZeroVariance]
    assert [type(one) for one in default_filters(config, rewards=REWARDS, min_rollouts=1)] == [EnoughValid]


def test_what_masks_goes_first_and_the_rule_says_how_many_must_be_left():
    config = PipelineConfig(filters=(DropEqualRewards(), MaskOverlong(limits=("tokens",)), MaskDuplicates(keep=2)))
    found = default_filters(config, rewards=REWARDS, min_rollouts=2)
    assert found[1:] == (
        Overlong(least=2, limits=("tokens",)), Duplicates(least=2, keep=2), ZeroVariance(rewards=REWARDS)
    )
    assert default_filters(config, rewards=REWARDS, min_rollouts=0)[1] == Overlong(least=1, limits=("tokens",))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MaskOverlong(limits=("token",)), r"overlong\.limits: unknown name 'token'; did you mean 'tokens'\?"),
        (lambda: MaskOverlong(limits=()), r"overlong\.limits: got none, expected some \(names: turns, tokens"),
        (lambda: MaskVoidTurns(parts=("blocks",)), r"void_turn\.parts: unknown name 'blocks'"),
        (lambda: MaskDuplicates(keep=0), r"duplicate\.keep: got 0, expected >= 1"),
        (lambda: PipelineConfig(filters=(MaskOverlong(), MaskOverlong())),
         r"pipeline\.filters: got overlong, overlong, expected each name once"),
    ],
)
def test_what_is_wrong_is_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_verdict_without_filters_is_the_group():
    group = group_of(play())
    assert judge([], group) == Verdict(group=group)


def test_a_rollout_through_a_state_whose_probes_were_lost_is_left_out():
    group = group_of(play(turns=(("code", (5,)), ("code", (6,)))), play())
    prompt, _, answer, *_ = group.segments.values()
    for index, at, end in ((2, prompt, OK), (3, answer, INFRA)):
        probe = group.fork("t0.0.0", index, at=at, probe=True).id
        group.sampled(probe, said((7,)), after=at, turn=1)
        if end.trains:
            group.pay(probe, "correct", 1.0)
        group.end(probe, end)
    assert Unprobed(least=1).masks(group) == {"t0.0.0": "unprobed"}
    plan = MaskUnprobed().begin(rewards=REWARDS, min_rollouts=1)
    advantage = Vine()(Forest.of([judge([plan], group).group])).advantage
    assert np.isfinite(advantage).all()
