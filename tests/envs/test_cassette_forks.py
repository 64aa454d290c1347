"""Forks on cassettes: what is recorded of forked episodes is found again, and nobody finds another fork's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.messages import Message, user
from treadle.core.seeds import Stream
from treadle.envs.cassette import Cassette
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.fork import fork
from treadle.envs.forking import Rng
from treadle.envs.host import EnvHost, Host, HostConfig
from treadle.envs.recorded import FallbackHost, RecordedHost, RecordingHost
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.step import Step
from treadle.envs.task import Task

TASK = Task(id="dice", prompt="roll")
SEED = Stream(3).at("ticket", 1)


class Dice(Env):
    """Rolls a die for every action."""

    fork = Fork.COPY
    max_turns = 6
    made = 0

    def __init__(self) -> None:
        Dice.made += 1

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.rng, self.rolled = ctx.rng, list[int]()
        return [user(task.prompt)]

    async def step(self, action: Action) -> Step:
        self.rolled.append(self.rng.randint(0, 10**9))
        return Step(messages=(user(f"{action.text}: {self.rolled}"),))

    async def score(self) -> dict[str, float]:
        return {"rolled": float(sum(self.rolled))}


class Alone(Dice):
    fork = Fork.NONE


def live(make: Callable[[], Env] = Dice) -> Callable[[], Host]:
    store = SnapshotStore()
    return lambda: EnvHost(make, config=HostConfig(), clock=SystemClock(), snapshots=store)


async def act(host: Host, *texts: str) -> list[str]:
    told = []
    for text in texts:
        step = await host.act(Action(text=text), step_id=f"{text}-{len(texts)}")
        assert step.outcome is None, step.outcome
        told += [message.content for message in step.messages]
    return told


async def forked(make: Callable[[], Host], rng: Rng, ways: Sequence[str] = ("b", "b", "c")) -> list[object]:
    """All that an episode, its forks and a fork of a fork are told."""
    host = make()
    opened = await host.open(TASK, SEED, rollout="t.0.0")
    assert opened.outcome is None
    told: list[object] = [await act(host, "a")]
    forks = await fork(host, len(ways), make_host=make, rng=rng, rollouts=[f"t.{i + 1}.0" for i in range(len(ways))])
    for one, way in zip(forks, ways, strict=True):
        assert one.opened.outcome is None, one.opened.outcome
        told += [one.opened.max_turns, await act(one.host, way)]
        (two,) = await fork(one.host, 1, make_host=make, rng=rng, rollouts=["t.9.0" + way])
        told += [two.opened.max_turns, await act(two.host, "d"), (await two.host.score()).parts]
        told += [await act(one.host, "d"), (await one.host.score()).parts]
    told += [await act(host, "b"), (await host.score()).parts]
    return told


@pytest.mark.parametrize("rng", ["same", "split"])
async def test_what_was_recorded_of_forks_is_played_without_a_world(tmp_path: Path, rng: Rng) -> None:
    world = live()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        recorded = await forked(lambda: RecordingHost(world(), tape), rng)
    made = Dice.made
    store = SnapshotStore()
    with Cassette(tmp_path / "tape.db", writes=False) as tape:
        played = await forked(lambda: RecordedHost(tape, snapshots=store), rng)
        assert tape.counts.missing == 0
    assert played == recorded
    assert Dice.made == made
    assert store.statistics().values["snapshots_held"] == 0


async def test_a_split_fork_never_finds_the_answers_of_another_history(tmp_path: Path) -> None:
    world = live()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        make = lambda: FallbackHost(tape, lambda: world())  # noqa: E731
        told = await forked(make, "split", ("b", "b"))
    rolls = [str(answer) for answer in told if isinstance(answer, list)]
    assert len(set(rolls)) == len(rolls)


async def test_forks_with_the_same_randomness_share_answers(tmp_path: Path) -> None:
    world = live()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        host = RecordingHost(world(), tape)
        await host.open(TASK, SEED, rollout="t.0.0")
        await act(host, "a", "b")
        other = RecordedHost(tape)
        await other.open(TASK, SEED, rollout="u.0.0")
        await act(other, "a")
        (one,) = await fork(other, 1, make_host=lambda: RecordedHost(tape, snapshots=other.snapshots))
        assert await act(one.host, "b") == (await act(other, "b"))


@pytest.mark.parametrize("rng", ["same", "split"])
async def test_a_fork_that_leaves_the_cassette_goes_on_in_a_world_led_there(tmp_path: Path, rng: Rng) -> None:
    world = live()
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        recording = RecordingHost(world(), tape)
        await recording.open(TASK, SEED, rollout="t.0.0")
        (first,) = await act(recording, "a")
        make = lambda: FallbackHost(tape, lambda: world())  # noqa: E731
        host = make()
        await host.open(TASK, SEED, rollout="t.0.0")
        assert await act(host, "a") == [first]
        made = Dice.made
        one, two = await fork(host, 2, make_host=make, rng=rng, rollouts=["t.1.0", "t.2.0"])
        assert Dice.made == made, "nobody needs a world yet"
        (seen,), (other,) = await act(one.host, "x"), await act(two.host, "x")
        assert Dice.made > made
        rolls = first.partition(": ")[2].rstrip("]")
        assert seen.startswith(f"x: {rolls}, ")
        assert (seen == other) == (rng == "same")
        assert one.host.tier == "real"
        (three,) = await fork(one.host, 1, make_host=make)
        assert await act(three.host, "y") == await act(one.host, "y")
        for each in (host, one.host, two.host, three.host):
            await each.close()


async def test_where_a_world_could_not_be_forked_its_record_cannot_either(tmp_path: Path) -> None:
    world = live(Alone)
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        host = RecordingHost(world(), tape)
        await host.open(TASK, SEED, rollout="t.0.0")
        assert await host.snapshot() is None
        played = RecordedHost(tape)
        await played.open(TASK, SEED, rollout="t.0.0")
        assert await played.snapshot() is None
        assert played.snapshots.statistics().values["snapshots_refused.none"] == 1


async def test_a_recorded_episode_that_is_over_is_not_forked(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as tape:
        host = RecordedHost(tape)
        assert (await host.open(TASK, SEED)).outcome is not None
        assert await host.snapshot() is None
