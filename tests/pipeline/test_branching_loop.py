"""A whole loop over groups that branch: what is told, what trains, what a lost branch costs."""

from __future__ import annotations

from collections import Counter

import pytest

from treadle.agents.branch_entropy import ByEntropy
from treadle.agents.branch_expand import Expand
from treadle.agents.branch_finished import ExpandFinished
from treadle.agents.branch_fixed import FixedTree
from treadle.agents.branch_none import Independent
from treadle.agents.branch_probe import Probe
from treadle.agents.group_player import RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import EngineError
from treadle.core.outcome import OK, Origin, failure
from treadle.pipeline.filters import EnoughValid
from treadle.pipeline.redundant import Redundant
from treadle.pipeline.stale import masked
from treadle.testing.echo_env import EchoTaskset


def says(turn):
    return "yes" if turn.request.stream.uniform(0) < 0.4 else "no"


def branching(bench, policy, **changes):
    bench.limits = RolloutLimits(max_turns=3)
    bench.taskset = EchoTaskset(("yes",), data={"turns": 3})
    bench.script = says
    bench.set(**{"group_size": 2, "updates": 3, **changes})
    players = bench.player

    def player(engine, *, size, seed=7):
        made = players(engine, size=size, seed=seed)
        return type(made)(
            made.player, size=size, retries=bench.retries, seed=made.seed, watcher=bench.ledger, branching=policy
        )

    bench.player = player
    return bench


@pytest.mark.parametrize(
    "policy",
    [FixedTree(widths=(2, 2)), Expand(expansions=3), ExpandFinished(expansions=3), Probe(probes=2, turns=1)],
    ids=lambda p: p.name,
)
@pytest.mark.parametrize("lag", [0, 1])
def test_every_branch_ends_exactly_once_and_every_ticket_is_closed(bench, policy, lag):
    report = branching(bench, policy, lag=lag).run()
    assert report.updates == 3
    ends = Counter(e["rollout"] for e in bench.ears.named("rollout.done"))
    assert set(ends) == set(bench.shelf.rollouts)
    assert set(ends.values()) == {1}
    closed = [*bench.ears.named("group.trained"), *bench.ears.named("group.dropped")]
    assert sorted(e["ticket"] for e in closed) == list(range(9))
    probes = [r.id for r in bench.shelf.rollouts.values() if r.probe]
    assert len(probes) == (9 * (2 + 2 * 2) if policy.name == "probe" else 0)


def test_an_update_tells_what_branching_did_and_all_that_was_sampled(bench):
    branching(bench, Probe(probes=2, turns=1)).run()
    for event in [*bench.ears.named("update.done"), *bench.ears.named("update.skipped")]:
        assert (event["branching.probes"], event["branching.forks"]) == (3 * 6, 0)
        assert event["branching.snapshots"] == 3 * 2
        assert event["branching.snapshot_bytes"] > 0
    told = bench.ears.named("rollout.done")
    sampled = [e["tokens_sampled"] for e in [*bench.ears.named("update.done"), *bench.ears.named("update.skipped")]]
    assert sum(sampled) == sum(e["tokens"] for e in told)
    assert {e["probe"] for e in told} == {True, False}


def test_independent_rollouts_tell_nothing_of_branches(bench):
    branching(bench, Independent()).run()
    (event, *_) = bench.ears.named("update.done")
    assert not [key for key in event if key.startswith("branching.")]
    assert bench.ears.named("group.branched") == []


def test_that_a_world_cannot_be_forked_is_said_once(bench, monkeypatch):
    from treadle.envs.env import Fork
    from treadle.testing.echo_env import EchoEnv

    monkeypatch.setattr(EchoEnv, "fork", Fork.NONE)
    branching(bench, FixedTree(widths=(2,))).run()
    (told,) = bench.ears.named("branching.fell_back")
    assert told["task"].startswith("echo-train-")
    assert sum(e["independent"] for e in bench.ears.named("group.branched")) == 9 * 2


def test_a_tree_of_which_too_little_is_left_is_dropped(bench):
    bench.retries = RetryBudget(infra=0)

    def script(turn):
        lost = turn.rollout.startswith("t000000.") and int(turn.rollout.split(".")[1]) >= 2
        return EngineError("lost") if lost else says(turn)

    branching(bench, FixedTree(widths=(2, 2)), updates=1)
    bench.script = script
    bench.run()
    (dropped,) = [e for e in bench.ears.named("group.dropped") if e["ticket"] == 0]
    assert (dropped["reason"], dropped["valid"]) == ("min_valid", 2)


def test_rollouts_in_place_of_forks_count_among_those_that_began(bench, monkeypatch):
    from treadle.envs.env import Fork
    from treadle.testing.echo_env import EchoEnv

    monkeypatch.setattr(EchoEnv, "fork", Fork.NONE)
    bench.retries = RetryBudget(infra=0)

    def script(turn):
        return EngineError("lost") if int(turn.rollout.split(".")[1]) >= 2 else mixed_by_place(turn)

    branching(bench, FixedTree(widths=(2, 2)), updates=1)
    bench.script = script
    bench.run()
    assert {(e["reason"], e["valid"]) for e in bench.ears.named("group.dropped")} == {("min_valid", 2)}


def mixed_by_place(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def test_enough_counts_forks_and_no_probes(make_tree):
    enough = EnoughValid(group_size=1, min_valid=0.75, min_rollouts=1)
    assert enough(make_tree(lost=0)) is None
    assert enough(make_tree(lost=1)) is None
    assert enough(make_tree(lost=2)) == "min_valid"
    assert enough(make_tree(lost=1, probe=True)) is None


def test_what_is_shared_with_a_lost_rollout_is_as_old_as_it_is(make_tree):
    tree = make_tree(lost=0, first_lost=True)
    assert tree.oldest_version == 3
    left = masked(tree, oldest=4)
    assert left is not None
    assert [s.logprobs is None for s in left.segments.values() if s.turn == 0 and s.rollout] == [True, True]
    assert masked(tree, oldest=3) is tree


@pytest.fixture
def make_tree():
    """A chain and three forks of it behind its first action, of which some are lost."""
    import numpy as np

    from treadle.core.ports import Completion, Finish
    from treadle.trajectory.group import Group, GroupKey

    def sampled(version):
        return Completion(
            ids=np.array([5, 6], np.int32), logprobs=np.full(2, -1.0, np.float32), entropy=np.zeros(2, np.float32),
            versions=((version, 2),), kv_version=version, finish=Finish.STOP,
        )

    def make(*, lost, probe=False, first_lost=False):
        group = Group(GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=3))
        prompt, first = group.prompt(np.array([1], np.int32)), group.begin(0).id
        act = group.sampled(first, sampled(3), after=prompt, turn=0)
        at = group.observed(first, np.array([2], np.int32), after=act, turn=0)
        forks = [group.fork(first, index, at=at, probe=probe).id for index in (1, 2, 3)]
        gone = forks[:lost] + [first] * first_lost
        for rollout in [first, *forks]:
            group.sampled(rollout, sampled(4), after=at, turn=1)
            if rollout in gone:
                group.end(rollout, failure(Origin.INFRA, RuntimeError("lost")), scored=False)
            else:
                group.pay(rollout, "score", 1.0)
                group.end(rollout, OK)
        return group

    return make


def test_what_a_tree_that_was_given_up_has_cost_is_told_when_its_ticket_is_taken(bench):
    branching(bench, ByEntropy(threshold=0.0, forks=1), schedule=Redundant(share=0.5), groups_per_update=2, updates=2)
    bench.script = lambda turn: "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"
    bench.latency = lambda turn: 100.0 if (turn.rollout[:8], turn.request.stream.path[-2]) == ("t000002.", 2) else 1.0
    bench.run()
    (given_up,) = [e for e in bench.ears.named("group.dropped") if e["ticket"] == 2]
    assert given_up["reason"] == "cancelled"
    told = {e["ticket"]: e for e in bench.ears.named("group.branched")}
    assert told[2]["look_tokens"] > 0
    assert set(told) == set(range(6))
    names = [(e.name, e.values.get("ticket", e.values.get("update"))) for e in bench.ears.events]
    assert names.index(("batch.taken", 1)) < names.index(("group.branched", 2))
