"""Trees at their edges: a chain that ends where it was kept, a snapshot store without room, worlds that lie or hang."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest

from treadle.agents.branch_finished import ExpandFinished
from treadle.agents.branch_fixed import FixedTree
from treadle.agents.branch_probe import Probe
from treadle.agents.group_player import RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.core.outcome import Origin
from treadle.envs.env import Fork
from treadle.envs.host import HostConfig
from treadle.envs.snapshots import SnapshotsConfig, SnapshotStore
from treadle.envs.step import Step
from treadle.testing.echo_env import EchoEnv, EchoTaskset

LIMITS = RolloutLimits(max_turns=4, max_tokens_per_turn=8)
WORLDS = [FixedTree(widths=(2, 2)), ExpandFinished(expansions=3), Probe(probes=2, turns=2)]


class Ears:
    """Hears what every rollout and group came to."""

    def __init__(self):
        self.ends = Counter()
        self.tallies = []

    def ended(self, group, rollout, task, *, retried):
        self.ends[rollout.id] += 1

    def branched(self, group, tally, *, whole):
        self.tallies.append(tally)


def played(stage, branching, *, script=("yes",), size=2, turns=4, ticket=0, **options):
    group, ears = stage.group(ticket), Ears()
    options = {"limits": LIMITS, **options}
    engine = stage.engine(list(script), latency=lambda turn: 1.0)
    task = EchoTaskset(("yes",), data={"turns": turns}).task("train", 0)
    players = stage.groups(engine, size=size, branching=branching, watcher=ears, **options)
    stage.clock.run(players.play(group, task))
    held = stage.snapshots.statistics().values
    assert (stage.open_hosts, held["snapshots_held"], held["snapshots_bytes"]) == (0, 0, 0)
    assert set(ears.ends) == set(group.rollouts)
    assert set(ears.ends.values()) == {1}
    return group, ears.tallies[0]


@pytest.mark.parametrize("ticket", range(6))
def test_nobody_is_paid_for_what_another_rollout_was_scored_for(stage, ticket):
    """A chain whose tokens are used up between two turns ends at a state that it has a snapshot of."""
    branching = ExpandFinished(expansions=2, tokens_per_group=24, reserve_tokens=4)
    group, tally = played(stage, branching, size=1, ticket=ticket)
    chain = group.rollouts[f"g{ticket}.0.0"]
    assert chain.outcome.type == "budget"
    assert tally.forks == 2
    for rollout in group.valid:
        assert rollout.reward <= 1.0, rollout
        assert rollout.forked_at != chain.leaves[-1]


@pytest.mark.parametrize("branching", WORLDS, ids=lambda b: b.name)
def test_a_store_with_room_for_one_snapshot_lets_every_group_be_played(stage, branching):
    stage.snapshots = SnapshotStore(SnapshotsConfig(most=1))
    group, tally = played(stage, branching)
    assert stage.snapshots.statistics().values["snapshots_peak_held"] == 1
    assert len(group.valid) == branching.rollouts(2)
    assert tally.independent or tally.refused["no_snapshot"] or branching.name == "expand_finished"


class HangsIn(EchoEnv):
    fork = Fork.COPY
    where = ""

    async def snapshot(self):
        if self.where == "snapshot":
            await asyncio.Event().wait()
        return super().snapshot()

    async def restore(self, snapshot):
        if self.where == "restore":
            await asyncio.Event().wait()
        super().restore(snapshot)
        self.restored = True

    async def score(self):
        if self.where == "score" and vars(self).get("restored"):
            await asyncio.Event().wait()
        return await super().score()


class HangsInDigest(EchoEnv):
    fork = Fork.REPLAY
    made = 0

    async def reset(self, task, ctx):
        type(self).made += 1
        self.number = type(self).made
        return await super().reset(task, ctx)

    async def digest(self):
        if self.number > 2:
            await asyncio.Event().wait()
        return None


def host(**changes):
    return HostConfig(**{"setup_s": 0.2, "step_s": 0.2, "score_s": 0.2, **changes})


@pytest.mark.parametrize("where", ["snapshot", "restore", "score"])
def test_a_world_that_hangs_in_forks_ends_with_a_name_and_its_chains_train(stage, where):
    stage.host = host(score_retries=0)
    world = type("Hangs", (HangsIn,), {"where": where})
    group, tally = played(stage, FixedTree(widths=(2,)), env=world, retries=RetryBudget(env=1))
    lost = {(r.outcome.origin, r.outcome.type) for r in group.rollouts.values() if not r.trains}
    assert {r.index for r in group.valid} >= {0, 1}
    if where == "snapshot":
        assert (tally.independent, lost) == (2, set())
        assert stage.snapshots.statistics().values["snapshots_refused.snapshot_timeout"] == 2
    elif where == "restore":
        assert lost == {(Origin.ENV, "resume_timeout")}
    else:
        assert lost == {(Origin.GRADER, "score_timeout")}
    assert all(r.reward is None for r in group.rollouts.values() if not r.trains)


def test_a_digest_that_hangs_in_forks_ends_them_with_a_name(stage):
    stage.host = host()
    HangsInDigest.made = 0
    group, _ = played(stage, FixedTree(widths=(2,)), env=HangsInDigest, retries=RetryBudget(env=0))
    lost = {(r.outcome.origin, r.outcome.type) for r in group.rollouts.values() if not r.trains}
    assert lost == {(Origin.ENV, "digest_timeout")}
    assert [r.index for r in group.valid] == [0, 1]


@pytest.mark.parametrize("digest", [7, b"x", [1], {"a": 1}])
def test_a_digest_that_is_no_text_is_the_environments_fault(stage, digest):
    world = type("Odd", (EchoEnv,), {"fork": Fork.REPLAY, "digest": lambda self: digest})
    group, _ = played(stage, FixedTree(widths=(2,)), env=world)
    assert {(r.outcome.origin, r.outcome.type) for r in group.rollouts.values()} == {(Origin.ENV, "EnvError")}
    assert all(f"digest: got {type(digest).__name__}" in r.outcome.message for r in group.rollouts.values())


def test_a_state_that_cannot_say_its_size_can_be_kept(stage):
    class Sizeless:
        def __sizeof__(self):
            raise OSError("no size")

    class Odd(EchoEnv):
        fork = Fork.COPY

        async def reset(self, task, ctx):
            self.odd = Sizeless()
            return await super().reset(task, ctx)

    group, tally = played(stage, FixedTree(widths=(2,)), env=Odd)
    assert (tally.forks, len(group.valid)) == (2, 4)


class PaysNan(EchoEnv):
    """Pays no number for what its forks will share."""

    fork = Fork.COPY

    async def step(self, action):
        step = await super().step(action)
        return Step(messages=step.messages, terminated=step.terminated, reward=math.nan if len(self.heard) == 1 else 0)


def test_no_number_in_a_shared_start_is_never_a_reward(stage):
    group, tally = played(stage, FixedTree(widths=(1, 2)), env=PaysNan, retries=RetryBudget(env=0))
    assert (tally.forks, group.valid) == (0, [])
    assert {r.outcome.origin for r in group.rollouts.values()} == {Origin.ENV}
    assert group.records == []


class BreaksInForks(EchoEnv):
    fork = Fork.COPY

    def restore(self, snapshot):
        super().restore(snapshot)
        self.broken = True

    async def step(self, action):
        if vars(self).get("broken"):
            raise RuntimeError("only in a fork")
        return await super().step(action)


@pytest.mark.parametrize("branching", WORLDS, ids=lambda b: b.name)
def test_a_world_that_breaks_in_forks_only_costs_the_forks(stage, branching):
    group, _ = played(stage, branching, env=BreaksInForks)
    assert [r.index for r in group.valid] == [0, 1]
    lost = [r for r in group.rollouts.values() if not r.counts]
    assert {(r.outcome.origin, r.outcome.type, r.reward) for r in lost} == {(Origin.ENV, "RuntimeError", None)}


@pytest.mark.parametrize("branching", WORLDS, ids=lambda b: b.name)
def test_a_group_that_is_cancelled_at_any_await_frees_all_that_it_holds(stage, branching):
    """The loop is stopped after so many steps of it, wherever everybody stands then."""
    task = EchoTaskset(("yes",), data={"turns": 4}).task("train", 0)

    async def main(after, group, ears):
        engine = stage.engine(["yes"], latency=lambda turn: 0.0)
        players = stage.groups(engine, size=2, branching=branching, watcher=ears, limits=LIMITS)
        running = asyncio.ensure_future(players.play(group, task))
        for _ in range(after):
            await asyncio.sleep(0)
        done = running.done()
        running.cancel()
        await asyncio.wait({running})
        return done

    done, after = False, 0
    while not done:
        group, ears = stage.group(after), Ears()
        done = stage.clock.run(main(after, group, ears))
        held = stage.snapshots.statistics().values
        assert (stage.open_hosts, held["snapshots_held"], held["snapshots_bytes"]) == (0, 0, 0), after
        assert dict.fromkeys(group.rollouts, 1) == dict(ears.ends), after
        assert all(r.outcome is not None for r in group.rollouts.values()), after
        after += 1
    assert after > 50
