"""Groups that grow as trees: their shapes, their places, their budget, and what is left when something is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from treadle.agents.branch_entropy import ByEntropy
from treadle.agents.branch_expand import Expand
from treadle.agents.branch_finished import ExpandFinished
from treadle.agents.branch_fixed import FixedTree
from treadle.agents.branch_none import Independent
from treadle.agents.branch_probe import Probe
from treadle.agents.branching import GO_ON, Budget, Split, Unforked
from treadle.agents.branchings import BRANCHING
from treadle.agents.group_player import RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError, EngineError
from treadle.core.outcome import Origin, Status
from treadle.envs.env import Fork
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author, Why

LIMITS = RolloutLimits(max_turns=4, max_tokens_per_turn=8)


class Unforkable(EchoEnv):
    fork = Fork.NONE


class Ears:
    """Hears what every rollout and group came to."""

    def __init__(self):
        self.ends = Counter()
        self.tallies = []

    def ended(self, group, rollout, task, *, retried):
        self.ends[rollout.id] += 1

    def branched(self, group, tally, *, whole):
        self.tallies.append((tally, whole))


def says(turn):
    """A word of the rollout's own stream."""
    return "yes" if turn.request.stream.uniform(0) < 0.5 else "no"


def play(stage, branching, *, script=says, size=2, turns=4, latency=lambda turn: 1.0, data=None, **options):
    group, ears = stage.group(), Ears()
    options = {"limits": LIMITS, "watcher": ears, **options}
    engine = stage.engine(script, latency=latency)
    task = EchoTaskset(("yes",), data={"turns": turns, **(data or {})}).task("train", 0)
    stage.clock.run(stage.groups(engine, size=size, branching=branching, **options).play(group, task))
    return group, ears, engine


def shape(group):
    """Place to (place that it was forked from, turn before which it was forked, probe)."""
    out = {}
    for rollout in group.rollouts.values():
        if rollout.forked_from is not None:
            at = group.segments[rollout.forked_at]
            turn = 0 if at.why is Why.PROMPT else at.turn + 1
            out[rollout.index] = (group.rollouts[rollout.forked_from].index, turn, rollout.probe)
    return out


def nothing_leaks(stage, group, ears):
    held = stage.snapshots.statistics().values
    assert (stage.open_hosts, held["snapshots_held"], held["snapshots_bytes"]) == (0, 0, 0)
    assert held["snapshots_taken"] == held["snapshots_freed"]
    assert set(ears.ends.values()) == {1}
    assert set(ears.ends) == set(group.rollouts)
    assert all(rollout.outcome is not None for rollout in group.rollouts.values())


def test_a_fixed_tree_has_the_widths_that_it_was_given(stage):
    group, ears, engine = play(stage, FixedTree(widths=(2, 3)), size=2)
    assert shape(group) == {
        2: (0, 1, False), 3: (0, 2, False), 4: (0, 2, False), 5: (2, 2, False), 6: (2, 2, False),
        7: (1, 1, False), 8: (1, 2, False), 9: (1, 2, False), 10: (7, 2, False), 11: (7, 2, False),
    }
    assert len(group.valid) == 12
    forest = Forest.of([group])
    assert {width: int((forest.children == width).sum()) for width in (2, 3)} == {2: 3, 3: 4}  # the prompt has 2, too
    assert len(engine.requests) == 2 + 4 + 12 + 12
    nothing_leaks(stage, group, ears)


def test_a_fork_continues_the_tokens_and_the_world_of_where_it_began(stage):
    group, _, engine = play(stage, FixedTree(widths=(1, 2)), size=1)
    forked = next(r for r in group.rollouts.values() if r.forked_from)
    at = group.segments[forked.forked_at]
    first = next(r for r in engine.requests if r.cache.rollout == forked.id)
    assert first.prompt.tolist() == group.context_ids(at.id).tolist()
    assert first.stream.path[-7:] == ("rollout", 1, "attempt", 0, "turn", 2, "sample")
    assert [s.turn for s in group.actions(forked.id)] == [0, 1, 2, 3]
    assert [s.state_key for s in group.actions(forked.id)][1:] == ["1", "2", "3"]
    assert forked.outcome.status is Status.OK
    assert at.snapshot is not None
    assert [s.id for s in group.segments.values() if s.snapshot is not None] == [at.id]


def test_what_a_fork_says_does_not_depend_on_timing(stage):
    def said(group):
        return {r.id: (r.reward, [s.ids.tolist() for s in group.actions(r.id)]) for r in group.rollouts.values()}

    found = []
    for chance in map(random.Random, range(3)):
        for branching in (
            FixedTree(widths=(2, 2)), Expand(expansions=3), ExpandFinished(expansions=3), Probe(probes=2, turns=2),
            ByEntropy(threshold=0.1, forks=2),
        ):
            group, ears, _ = play(stage, branching, size=2, latency=lambda turn, chance=chance: chance.random())
            nothing_leaks(stage, group, ears)
            found.append((branching.name, said(group)))
    for name in BRANCHING:
        trees = [tree for other, tree in found if other == name]
        assert all(tree == trees[0] for tree in trees)


def test_expansions_stand_where_they_were_drawn(stage):
    group, ears, _ = play(stage, Expand(expansions=5, turns=3), size=2)
    tree = shape(group)
    assert sorted(tree) == [2, 3, 4, 5, 6]
    assert {place for place, _, _ in tree.values()} <= {0, 1}
    again, _, _ = play(stage, Expand(expansions=5, turns=3), size=2, script=["no"])
    assert shape(again) == tree  # whatever is said
    assert ears.tallies[0][0].forks == 5


def test_expansions_of_chains_that_ended_before_are_counted(stage):
    group, ears, _ = play(stage, Expand(expansions=4, turns=3), size=2, turns=1)
    assert shape(group) == {}
    assert ears.tallies[0][0].facts()["refused.unreached"] == 4


def test_finished_chains_are_forked_at_states_that_they_reached(stage):
    group, ears, engine = play(stage, ExpandFinished(expansions=3), size=2)
    tree = shape(group)
    assert sorted(tree) == [2, 3, 4]
    chains = [at for at, request in enumerate(engine.requests) if request.cache.rollout.split(".")[1] in "01"]
    assert max(chains) < min(set(range(len(engine.requests))) - set(chains))
    assert ears.tallies[0][0].held_most == 6  # every state of both chains, until they had ended
    nothing_leaks(stage, group, ears)


def test_a_state_where_a_chain_ran_out_of_tokens_is_not_forked(stage):
    policy = ExpandFinished(expansions=2, tokens_per_group=12, reserve_tokens=1)
    group, ears, _ = play(stage, policy, size=1, script=["yes"])
    assert [(r.index, r.reward, r.outcome.type) for r in group.valid] == [(0, 1.0, "budget")]
    nothing_leaks(stage, group, ears)


def test_probes_say_what_states_are_worth_and_train_nothing(stage):
    group, ears, _ = play(stage, Probe(probes=3, turns=2), size=2)
    probes = [r for r in group.rollouts.values() if r.probe]
    assert len(probes) == 3 + 2 * 2 * 3
    assert [r.index for r in group.valid] == [0, 1]
    forest = Forest.of([group])
    assert len(group.probed) == 5
    prompt = next(row for row, s in enumerate(forest.segments) if s.why is Why.PROMPT)
    assert 0 <= forest.probed[prompt] <= 1
    assert ears.tallies[0][0].probes == 15
    nothing_leaks(stage, group, ears)


def uncertain_engine(stage, entropies):
    """An engine whose completions have this entropy by turn."""
    engine = stage.engine(says)
    generate = engine.generate

    async def other(request):
        done = await generate(request)
        return replace(done, entropy=done.entropy * 0 + entropies[request.stream.path[-2]])

    engine.generate = other
    return engine


def test_states_fork_where_a_look_is_uncertain(stage):
    group, ears = stage.group(), Ears()
    engine = uncertain_engine(stage, {0: 9.0, 1: 0.5, 2: 2.0, 3: 0.5})
    task = EchoTaskset(("yes",), data={"turns": 4}).task("train", 0)
    players = stage.groups(
        engine, size=2, branching=ByEntropy(threshold=1.0, width=3, forks=1), limits=LIMITS, watcher=ears
    )
    stage.clock.run(players.play(group, task))
    assert shape(group) == {2: (0, 2, False), 3: (0, 2, False), 4: (1, 2, False), 5: (1, 2, False)}
    looks = [r for r in engine.requests if r.stream.path[-1] == "look"]
    assert [r.sampling.max_tokens for r in looks] == [1] * 4  # at turns 1 and 2 of both chains; then no place is left
    tally, whole = ears.tallies[0]
    assert (tally.looks, tally.look_tokens, whole) == (4, 4, True)
    nothing_leaks(stage, group, ears)


def test_a_quantile_is_fixed_before_a_group_begins():
    policy = ByEntropy(quantile=0.5, threshold=7.0)
    brancher = policy.begin(size=2, limits=LIMITS)
    first = brancher.group(None, turns=4)
    brancher.seen.extend([1.0, 2.0, 3.0] * 20)
    assert first.bound == 7.0
    assert brancher.group(None, turns=4).bound == 2.0


# -- budgets ---------------------------------------------------------------------------------------------------


def sampled(group, tally):
    return sum(len(s) for s in group.segments.values() if s.author is Author.POLICY) + tally.look_tokens


@pytest.mark.parametrize("reserve", [None, 6])
@pytest.mark.parametrize(
    "policy", [Independent, FixedTree, ByEntropy, Expand, ExpandFinished, Probe], ids=lambda p: p.name
)
@pytest.mark.parametrize("budget", [64, 200, 300, 10_000])
def test_no_budget_is_ever_passed(stage, policy, budget, reserve):
    options = {FixedTree: {"widths": (2, 2)}, ByEntropy: {"threshold": 0.0}}.get(policy, {})
    branching = policy(tokens_per_group=budget, reserve_tokens=reserve, **options)
    if budget < branching.parts(2) * (reserve or 4 * LIMITS.max_tokens_per_turn):
        with pytest.raises(ConfigError, match="cannot pay for"):
            branching.require(size=2, limits=LIMITS, deterministic=True)
        return
    lost = {"g0.1.0"}

    def script(turn):
        return EngineError("lost") if turn.rollout in lost and turn.number == 2 else says(turn) * 2

    group, ears, _ = play(stage, branching, script=script)
    tally = ears.tallies[0][0]
    assert sampled(group, tally) <= budget
    if budget == 10_000:
        assert not tally.refused["budget"]
    if reserve is None:
        assert not [r for r in group.rollouts.values() if r.outcome.type == "budget"]
    nothing_leaks(stage, group, ears)


def test_a_fork_that_cannot_be_paid_for_does_not_begin_and_is_counted(stage):
    group, ears, _ = play(stage, FixedTree(widths=(2, 2), tokens_per_group=2 * 53), size=2, script=["yes"])
    assert shape(group) == {2: (0, 1, False), 5: (1, 1, False)}  # 53 - 4 pays for 2 x 24, then 24 - 4 not for 2 x 16
    assert ears.tallies[0][0].facts()["refused.budget"] == 4


def test_a_rollout_that_uses_up_its_part_ends_as_a_limit(stage):
    group, _, _ = play(stage, Independent(tokens_per_group=10, reserve_tokens=5), size=2, script=["yesss"])
    assert {(r.outcome.status, r.outcome.type) for r in group.rollouts.values()} == {(Status.TRUNCATED, "budget")}
    assert len(group.valid) == 2


def test_a_budget_that_cannot_pay_for_the_chains_is_refused_naming_the_key():
    with pytest.raises(ConfigError, match=r"branching\.tokens_per_group=63 cannot pay for 2 rollouts.*at least 64"):
        FixedTree(tokens_per_group=63).require(size=2, limits=LIMITS, deterministic=False)


# -- what goes wrong -------------------------------------------------------------------------------------------


def test_a_lost_fork_is_played_again_from_its_snapshot_and_hurts_nobody(stage):
    def script(turn):
        return EngineError("lost") if turn.rollout == "g0.2.0" else says(turn)

    group, ears, _ = play(stage, FixedTree(widths=(1, 2)), script=script, size=2)
    again = group.rollouts["g0.2.1"]
    assert (again.forked_from, again.forked_at) == ("g0.0.0", group.rollouts["g0.2.0"].forked_at)
    assert [r.index for r in group.valid] == [0, 1, 2, 3]
    assert "g0.2.0" not in {r.id for r in Forest.of([group]).rollouts}
    nothing_leaks(stage, group, ears)


def test_a_fork_whose_budget_is_spent_leaves_its_siblings_alone(stage):
    def script(turn):
        return EngineError("lost") if turn.rollout.startswith("g0.2.") else says(turn)

    group, ears, _ = play(stage, FixedTree(widths=(2,)), script=script, size=2, retries=RetryBudget(infra=1))
    assert [r.index for r in group.valid] == [0, 1, 3]
    assert sorted(r for r in group.rollouts if r.startswith("g0.2.")) == ["g0.2.0", "g0.2.1"]
    nothing_leaks(stage, group, ears)


def test_a_chain_that_is_lost_behind_its_fork_is_played_again_from_there(stage):
    def script(turn):
        return EngineError("lost") if turn.rollout == "g0.0.0" and turn.number == 3 else says(turn)

    group, ears, _ = play(stage, FixedTree(widths=(1, 2)), script=script, size=1)
    assert sorted(group.rollouts) == ["g0.0.0", "g0.0.1", "g0.1.0"]
    again = group.rollouts["g0.0.1"]
    assert again.forked_from == "g0.0.0"
    assert again.forked_at == group.rollouts["g0.1.0"].forked_at
    forest = Forest.of([group])
    assert [r.id for r in forest.rollouts] == ["g0.0.1", "g0.1.0"]
    assert forest.children.max() == 2
    assert group.oldest_version == 0
    nothing_leaks(stage, group, ears)


def test_a_replay_that_diverges_never_trains(stage):
    class Moody(EchoEnv):
        fork = Fork.REPLAY
        made = 0

        async def reset(self, task, ctx):
            type(self).made += 1
            self.mood = type(self).made
            return await super().reset(task, ctx)

        def digest(self):
            return str(self.mood) if self.heard else "begin"

    group, ears, _ = play(stage, FixedTree(widths=(2,)), env=Moody, size=1, retries=RetryBudget(env=1))
    diverged = [r for r in group.rollouts.values() if r.forked_from]
    assert [(r.outcome.origin, r.outcome.type, r.trains) for r in diverged] == [
        (Origin.ENV, "ReplayDiverged", False)
    ] * 2
    assert [r.index for r in group.valid] == [0]
    nothing_leaks(stage, group, ears)


@pytest.mark.parametrize("policy", [FixedTree(widths=(2, 2)), Expand(expansions=4), ExpandFinished(expansions=4)])
def test_a_world_that_cannot_be_forked_gets_as_many_independent_rollouts(stage, policy):
    group, ears, _ = play(stage, policy, env=Unforkable, size=2)
    assert shape(group) == {}
    assert len(group.valid) == policy.rollouts(2)
    tally = ears.tallies[0][0]
    assert (tally.independent, tally.forks, tally.snapshots) == (policy.rollouts(2) - 2, 0, 0)
    nothing_leaks(stage, group, ears)


def test_states_of_a_world_that_cannot_be_forked_are_not_probed(stage):
    group, ears, _ = play(stage, Probe(probes=2, turns=1), env=Unforkable, size=2)
    assert ears.tallies[0][0].facts()["refused.no_snapshot"] == 4
    assert [r.probe for r in group.rollouts.values()].count(True) == 2  # of the prompt, where a reset leads
    nothing_leaks(stage, group, ears)


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5, 3.5])
@pytest.mark.parametrize(
    "policy",
    [FixedTree(widths=(2, 2)), ByEntropy(threshold=0.0), Expand(), ExpandFinished(), Probe()],
    ids=lambda p: p.name,
)
def test_a_group_that_is_cancelled_frees_all_that_it_holds(stage, policy, after):
    group, ears = stage.group(), Ears()
    players = stage.groups(
        stage.engine(says, latency=lambda turn: 1.0), size=2, branching=policy, limits=LIMITS, watcher=ears
    )
    task = EchoTaskset(("yes",), data={"turns": 4}).task("train", 0)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(players.play(group, task))
            await stage.clock.sleep(after)
            running.cancel()

    stage.clock.run(main())
    nothing_leaks(stage, group, ears)
    assert [whole for _, whole in ears.tallies] == [False]
    assert players.playing == {}


def test_a_silent_fork_is_given_up_and_played_again(stage):
    from treadle.core.outcome import Outcome

    silent = Outcome(status=Status.ERROR, origin=Origin.INFRA, type="silent", message="no segment")
    group, ears = stage.group(), Ears()
    engine = stage.engine(says, latency=lambda turn: 1e6 if turn.rollout == "g0.1.0" else 1.0)
    players = stage.groups(engine, size=1, branching=FixedTree(widths=(2,)), limits=LIMITS, watcher=ears)
    task = EchoTaskset(("yes",), data={"turns": 4}).task("train", 0)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(players.play(group, task))
            await stage.clock.sleep(50)
            assert players.playing["g0.1.0"].cut(silent)

    stage.clock.run(main())
    assert group.rollouts["g0.1.0"].outcome == silent
    assert [r.id for r in group.valid] == ["g0.0.0", "g0.1.1"]
    nothing_leaks(stage, group, ears)


def test_a_whole_tree_is_not_played_again(stage):
    group, _, _ = play(stage, FixedTree(), size=2)
    engine = stage.engine(says)
    task = EchoTaskset(("yes",)).task("train", 0)
    stage.clock.run(stage.groups(engine, size=2, branching=FixedTree(), limits=LIMITS).play(group, task))
    assert engine.requests == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FixedTree(widths=()), r"branching\.widths: got \[\]"),
        (lambda: FixedTree(widths=(2, 0)), r"branching\.widths: got \[2, 0\]"),
        (lambda: ByEntropy(width=1), r"branching\.width: got 1, expected >= 2"),
        (lambda: ByEntropy(quantile=1.0), r"branching\.quantile: got 1\.0"),
        (lambda: Expand(expansions=0), r"branching\.expansions: got 0"),
        (lambda: ExpandFinished(expansions=0), r"branching\.expansions: got 0"),
        (lambda: Probe(probes=0), r"branching\.probes: got 0"),
        (lambda: Probe(tokens_per_group=0), r"branching\.tokens_per_group: got 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_naming_the_key(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_only_the_policy_that_draws_behind_its_chains_breaks_the_order():
    assert [name for name, kind in BRANCHING.items() if not kind.fanout_before_children] == ["expand_finished"]


def test_expansions_need_turns_to_draw_from():
    with pytest.raises(ConfigError, match=r"branching\.turns=none contradicts limits\.max_turns=none"):
        Expand().require(size=2, limits=RolloutLimits(), deterministic=False)


def test_a_policy_of_ones_own_is_two_small_classes(stage):
    """The one of docs/branching.md."""
    @dataclass(frozen=True, slots=True, kw_only=True)
    class EveryOther(Budget):
        name: ClassVar[str] = "every_other"
        fanout_before_children: ClassVar[bool] = True

        def rollouts(self, size):
            return 4 * size

        def begin(self, *, size, limits):
            return Plan()

    class Plan(Unforked):
        def group(self, seed, *, turns):
            return self

        def places(self, chain):
            return 3

        async def fanout(self, point, look):
            return Split(children=2) if point.state.turn in (1, 3) else GO_ON

    group, ears, _ = play(stage, EveryOther(), size=2)
    assert len(group.valid) == 8
    assert shape(group) == {
        2: (0, 1, False), 3: (0, 3, False), 4: (2, 3, False), 5: (1, 1, False), 6: (1, 3, False), 7: (5, 3, False)
    }
    nothing_leaks(stage, group, ears)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAt(Budget):
    """One more child of the chain's states before these turns, as `expand` might have drawn them."""

    name: ClassVar[str] = "drawn_at"
    fanout_before_children: ClassVar[bool] = True
    turns: tuple[int, ...] = (1, 3)

    def rollouts(self, size):
        return size + len(self.turns)

    def begin(self, *, size, limits):
        return self

    def group(self, seed, *, turns):
        return DrawnPlan(self.turns)


class DrawnPlan(Unforked):
    spreads = False
    draws = True

    def __init__(self, turns):
        self.turns = turns

    def places(self, chain):
        return len(self.turns)

    async def fanout(self, point, look):
        return Split(children=2) if point.trunk and point.state.turn in self.turns else GO_ON


class Short(EchoEnv):
    max_turns = 2


def test_what_begins_at_the_prompt_takes_what_it_needs_there_and_leaves_the_chain_as_much(stage):
    """The world allows fewer turns than the limits do, which is known when the prompt is probed."""
    policy = Probe(probes=4, turns=1, tokens_per_group=100)
    group, ears, _ = play(stage, policy, env=Short, size=1, limits=replace(LIMITS, max_turns=4))
    assert [(r.index, r.outcome.status) for r in group.valid] == [(0, Status.TRUNCATED)]
    assert {r.outcome.type for r in group.rollouts.values()} == {"turns"}
    assert ears.tallies[0][0].probes >= 4
    nothing_leaks(stage, group, ears)


def test_what_was_refused_to_an_attempt_is_settled_for_the_next_one(stage):
    lost = []

    def script(turn):
        if turn.request.stream.path[-2] == 2 and turn.rollout == "g0.0.0":
            lost.append(turn.rollout)
            return EngineError("lost")
        return "yes"

    group, ears, _ = play(stage, DrawnAt(tokens_per_group=44), size=1, script=script)
    assert lost == ["g0.0.0"]
    assert ears.tallies[0][0].refused == {"budget": 1}
    assert shape(group) == {2: (0, 3, False)}
    nothing_leaks(stage, group, ears)


def test_an_independent_rollout_that_cannot_be_paid_for_is_counted_once(stage):
    group, ears, _ = play(stage, DrawnAt(turns=(1,), tokens_per_group=53), env=Unforkable, size=1)
    assert ears.tallies[0][0].refused == {"budget": 1}
    assert shape(group) == {}
    nothing_leaks(stage, group, ears)
