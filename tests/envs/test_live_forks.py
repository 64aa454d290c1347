"""Forks of live episodes: the same world from there on, and nobody's but the fork's own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError
from treadle.core.messages import Message, user
from treadle.core.outcome import Origin, Status
from treadle.core.seeds import Stream
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.fork import fork
from treadle.envs.forking import Rng
from treadle.envs.host import EnvHost, Host, HostConfig
from treadle.envs.snapshots import SnapshotsConfig, SnapshotStore
from treadle.envs.step import Step
from treadle.envs.task import Task

TASK = Task(id="dice", prompt="roll")
SEED = Stream(3).at("ticket", 1)


class Dice(Env):
    """Says a number of its own randomness and all that it heard; changes a list and a mapping in place."""

    fork = Fork.COPY
    max_turns = 5
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.heard: list[str] = []
        self.counts: dict[str, list[int]] = {}

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.ctx, self.rng, self.task = ctx, ctx.rng, task
        self.hear = self.heard.append
        self.note = self._note
        return [user(task.prompt)]

    def _note(self, word: str) -> None:
        self.counts.setdefault(word, []).append(len(self.heard))

    async def step(self, action: Action) -> Step:
        self.heard.append(action.text)
        self.note(action.text)
        drawn = self.rng.randint(0, 10**9)
        assert self.rng is self.ctx.rng
        named = self.ctx.seed.at(len(self.heard)).uniform(0)
        return Step(messages=(user(f"{drawn} {named} {self.heard} {self.counts}"),), terminated=action.text == "end")

    def digest(self) -> str | None:
        return repr((self.heard, self.rng.getstate()))

    async def score(self) -> dict[str, float]:
        return {"heard": float(len(self.heard)), "a": float(self.heard.count("a"))}


class Replayed(Dice):
    fork = Fork.REPLAY


class Plain(Dice):
    fork = Fork.NONE


def maker(make: Callable[[], Env], store: SnapshotStore | None = None) -> Callable[[], EnvHost]:
    store = store or SnapshotStore()
    return lambda: EnvHost(make, config=HostConfig(), clock=SystemClock(), snapshots=store)


def say(text: str) -> Action:
    return Action(text=text)


async def said(host: Host, *texts: str) -> str:
    """The last answer."""
    step = Step()
    for text in texts:
        step = await host.act(say(text), step_id=f"{text}-{random.random()}")
        assert step.outcome is None or step.outcome.scored, step.outcome
    return step.messages[0].content


@pytest.mark.parametrize("kind", [Dice, Replayed])
async def test_a_fork_goes_on_as_its_parent_would_and_changes_nothing_of_it(kind: type[Dice]) -> None:
    make = maker(kind)
    host = make()
    await host.open(TASK, SEED, rollout="t.0.0")
    await said(host, "a", "b")
    forks = await fork(host, 3, make_host=make)
    first, second, third = (one.host for one in forks)
    assert [one.opened.max_turns for one in forks] == [3, 3, 3]
    assert [one.opened.messages for one in forks] == [(user("roll"),)] * 3
    ours = await said(host, "c")
    assert await said(first, "c") == ours
    assert await said(second, "a") != ours
    assert await said(second, "d") != await said(first, "d")
    assert (await second.score()).parts == {"heard": 4.0, "a": 2.0}
    assert (await third.score()).parts == {"heard": 2.0, "a": 1.0}
    assert (await host.score()).parts == {"heard": 3.0, "a": 1.0}
    for one in (host, first, second, third):
        await one.close()


@pytest.mark.parametrize("kind", [Dice, Replayed])
async def test_a_fork_of_a_fork_stands_where_it_stood(kind: type[Dice]) -> None:
    make = maker(kind)
    host = make()
    await host.open(TASK, SEED)
    await said(host, "a")
    (one,) = await fork(host, 1, make_host=make)
    await said(one.host, "b")
    (two,) = await fork(one.host, 1, make_host=make)
    assert two.opened.max_turns == 3
    assert await said(two.host, "c") == await said(one.host, "c")
    assert (await two.host.score()).parts == {"heard": 3.0, "a": 1.0}


@pytest.mark.parametrize("kind", [Dice, Replayed])
async def test_split_forks_draw_from_streams_of_their_own_that_do_not_depend_on_order(kind: type[Dice]) -> None:
    async def answers(order: list[int], rng: Rng = "split") -> dict[int, str]:
        make = maker(kind)
        host = make()
        await host.open(TASK, SEED, rollout="t.0.0")
        await said(host, "a")
        snapshot = await host.snapshot()
        assert snapshot is not None
        found = {}
        for number in order:
            other = make()
            await other.resume(snapshot, rollout=f"t.{number}.0", rng=rng)
            found[number] = await said(other, "b")
        found[0] = await said(host, "b")
        return found

    forwards, backwards = await answers([1, 2, 3]), await answers([3, 2, 1])
    assert forwards == backwards
    assert len(set(forwards.values())) == 4
    assert len(set((await answers([1, 2], "same")).values())) == 1


@pytest.mark.parametrize("kind", [Dice, Replayed])
async def test_a_fork_of_a_split_fork_has_the_randomness_of_the_split_one(kind: type[Dice]) -> None:
    make = maker(kind)
    host = make()
    await host.open(TASK, SEED)
    await said(host, "a")
    (one,) = await fork(host, 1, make_host=make, rng="split")
    await said(one.host, "b")
    same, other = await fork(one.host, 1, make_host=make), await fork(one.host, 1, make_host=make, rng="split")
    assert same[0].opened.outcome is other[0].opened.outcome is None
    (third,) = await fork(other[0].host, 1, make_host=make)
    ours = await said(one.host, "c")
    assert await said(same[0].host, "c") == ours
    theirs = await said(other[0].host, "c")
    assert theirs != ours
    assert await said(third.host, "c") == theirs


async def test_the_turn_limit_goes_on_counting() -> None:
    make = maker(Dice)
    host = make()
    await host.open(TASK, SEED)
    await said(host, "a", "b", "c", "d")
    (one,) = await fork(host, 1, make_host=make)
    assert one.opened.max_turns == 1
    step = await one.host.act(say("e"), step_id="e")
    assert step.outcome is not None and step.outcome.type == "turns"


async def test_an_environment_that_cannot_be_forked_is_said_so_once() -> None:
    lines: list[str] = []
    store = SnapshotStore(say=lines.append)
    for _ in range(3):
        host = maker(Plain, store)()
        await host.open(TASK, SEED)
        assert await host.snapshot() is None
        assert await fork(host, 2, make_host=maker(Plain, store)) == ()
        await said(host, "a")
    assert lines == ["Plain cannot be forked (fork=none): its groups get independent rollouts instead"]
    assert store.statistics().values["snapshots_refused.none"] == 6


async def test_a_replay_that_leads_elsewhere_is_the_environments_failure_and_is_never_scored() -> None:
    class Drifting(Replayed):
        made = 0

        async def step(self, action: Action) -> Step:
            step = await super().step(action)
            if type(self).made > 1 and len(self.heard) == 2:
                self.heard.append("drift")
            return step

    make = maker(Drifting)
    host = make()
    await host.open(TASK, SEED)
    await said(host, "a", "b", "c")
    (one,) = await fork(host, 1, make_host=make)
    outcome = one.opened.outcome
    assert outcome is not None
    assert (outcome.status, outcome.origin, outcome.type) == (Status.ERROR, Origin.ENV, "ReplayDiverged")
    assert "action 2 of 3" in outcome.message
    assert not outcome.trains
    assert (await one.host.score()).parts is None
    await said(host, "d")


async def test_without_a_digest_the_answers_are_compared() -> None:
    class Mute(Replayed):
        made = 0

        def digest(self) -> str | None:
            return None

        async def step(self, action: Action) -> Step:
            return Step(messages=(user(f"{type(self).made}"),))

    make = maker(Mute)
    host = make()
    await host.open(TASK, SEED)
    await said(host, "a")
    (one,) = await fork(host, 1, make_host=make)
    assert one.opened.outcome is not None and one.opened.outcome.type == "ReplayDiverged"


async def test_a_state_that_cannot_be_copied_is_refused_and_the_episode_goes_on() -> None:
    class Locked(Dice):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    store = SnapshotStore()
    host = maker(Locked, store)()
    await host.open(TASK, SEED)
    assert await host.snapshot() is None
    assert store.statistics().values["snapshots_refused.EnvError"] == 1
    await said(host, "a")
    assert (await host.score()).parts == {"heard": 1.0, "a": 1.0}


async def test_a_snapshot_of_all_attributes_may_be_written_by_hand_but_is_not_the_environment() -> None:
    class ByHand(Dice):
        def snapshot(self) -> object:
            return dict(vars(self))

        def restore(self, snapshot: object) -> None:
            assert isinstance(snapshot, dict)
            self.__dict__ = snapshot

    class Itself(Dice):
        def snapshot(self) -> object:
            return self

    make = maker(ByHand)
    host = make()
    await host.open(TASK, SEED)
    (one,) = await fork(host, 1, make_host=make)
    assert await said(one.host, "a") == await said(host, "a")
    store = SnapshotStore()
    other = maker(Itself, store)()
    await other.open(TASK, SEED)
    assert await other.snapshot() is None
    assert store.statistics().values["snapshots_refused.EnvError"] == 1


async def test_an_environment_that_hangs_in_a_snapshot_ends_with_its_next_action() -> None:
    stop = threading.Event()

    class Hanging(Dice):
        def snapshot(self) -> object:
            return stop.wait(20)

    host = EnvHost(Hanging, config=HostConfig(setup_s=0.05), clock=SystemClock())
    await host.open(TASK, SEED)
    assert await host.snapshot() is None
    step = await host.act(say("a"), step_id="0")
    assert step.outcome is not None and (step.outcome.origin, step.outcome.type) == (Origin.ENV, "snapshot_timeout")
    stop.set()


async def test_an_environment_that_fails_to_restore_is_closed() -> None:
    class Broken(Dice):
        closed = 0

        def restore(self, snapshot: object) -> None:
            raise RuntimeError("no")

        async def close(self) -> None:
            type(self).closed += 1

    make = maker(Broken)
    host = make()
    await host.open(TASK, SEED)
    (one,) = await fork(host, 1, make_host=make)
    assert one.opened.outcome is not None and one.opened.outcome.origin is Origin.ENV
    assert Broken.closed == 1


async def test_an_episode_that_is_over_is_not_forked() -> None:
    store = SnapshotStore()
    host = maker(Dice, store)()
    assert await host.snapshot() is None
    await host.open(TASK, SEED)
    await said(host, "end")
    assert await host.snapshot() is None
    await host.close()
    assert await host.snapshot() is None
    assert store.statistics().values["snapshots_refused.over"] == 3


async def test_ids_name_rollout_and_turn_and_are_unique() -> None:
    make = maker(Dice)
    host, other = make(), make()
    await host.open(TASK, SEED, rollout="t.0.0")
    await other.open(TASK, SEED)
    await said(host, "a")
    made = [await host.snapshot(), await host.snapshot(), await other.snapshot(), await other.snapshot()]
    assert [one.id if one else "" for one in made] == ["t.0.0@1", "t.0.0@1+2", "unnamed-1@0", "unnamed-2@0+2"]


async def test_what_is_released_is_freed_and_cannot_be_resumed() -> None:
    store = SnapshotStore()
    make = maker(Dice, store)
    host, one = make(), make()
    await host.open(TASK, SEED)
    snapshot = await host.snapshot()
    assert snapshot is not None
    assert snapshot.bytes > 2500, "the state of a random generator alone"
    await one.resume(snapshot)
    snapshot.release()
    snapshot.release()
    values = store.statistics().values
    assert (values["snapshots_held"], values["snapshots_bytes"], values["snapshots_freed"]) == (0, 0, 1)
    assert (values["snapshots_peak_held"], values["snapshots_peak_bytes"]) == (1, snapshot.bytes)
    with pytest.raises(RuntimeError, match="was released"):
        await make().resume(snapshot)
    await said(one, "a")


@pytest.mark.parametrize(
    ("config", "reason"), [(SnapshotsConfig(most=1), "count"), (SnapshotsConfig(most_bytes=1000), "bytes")]
)
async def test_beyond_its_bounds_a_store_refuses_and_the_rollout_goes_on(config: SnapshotsConfig, reason: str) -> None:
    store = SnapshotStore(config)
    host = maker(Dice, store)()
    await host.open(TASK, SEED)
    made = [await host.snapshot(), await host.snapshot()]
    assert made[1] is None
    assert store.statistics().values[f"snapshots_refused.{reason}"] >= 1
    await said(host, "a")
    if made[0] is not None:
        made[0].release()
        assert await host.snapshot() is not None


def test_a_level_may_be_a_word_and_another_word_is_refused_where_the_class_is_made() -> None:
    class Copies(Dice):
        fork = "copy"  # type: ignore[assignment]

    assert Copies.fork is Fork.COPY
    with pytest.raises(ValueError, match=r"Wrong\.fork: got 'copies', expected one of Fork\.NONE, Fork\.COPY, Fork"):
        type("Wrong", (Dice,), {"fork": "copies"})


def test_bounds_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"snapshots\.most_bytes: got 0"):
        SnapshotsConfig(most_bytes=0)


async def test_a_cancelled_fork_closes_what_it_made() -> None:
    begun: list[int] = []
    closed: list[int] = []

    class Slow(Dice):
        async def restore(self, snapshot: object) -> None:
            begun.append(1)
            if len(begun) == 2:  # one that is still being made would have nothing to close
                started.set()
            await asyncio.Event().wait()  # until it is cancelled: that is what this is about

        async def close(self) -> None:
            closed.append(1)

    started = asyncio.Event()
    make = maker(Slow)
    host = make()
    await host.open(TASK, SEED)
    forking = asyncio.ensure_future(fork(host, 2, make_host=make))  # owned here: cancelled and awaited below
    await started.wait()
    forking.cancel()
    await asyncio.wait({forking}, timeout=20)
    assert forking.cancelled()
    assert len(closed) == 2
    await host.close()


async def test_a_fork_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="n >= 1"):
        await fork(maker(Dice)(), 0, make_host=maker(Dice))
