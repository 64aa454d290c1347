"""`check_forks`: what every environment that can be forked must hold, tried through the host that will run it.

An episode is played undisturbed, once to its middle and once to its end; both give answers and a score to compare with.
Then it is played to its middle and forked: a fork sees the same world and comes to the same end; forks, and the episode
itself, do not see each other's changes; a fork of a fork is a fork; each is scored for what was done in it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.messages import Message
from treadle.core.seeds import Stream
from treadle.envs.env import Env
from treadle.envs.fork import Forked, fork
from treadle.envs.forking import Rng
from treadle.envs.host import EnvHost, Host, HostConfig, Score
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.task import Task
from treadle.testing.env_kit import JUNK

Answers = list[tuple[Message, ...]]


async def check_forks(
    make_env: Callable[[], Env], tasks: Sequence[Task], *, actions: Callable[[Task], Sequence[Action]],
    config: HostConfig | None = None, seed: int = 0,
) -> None:
    """Hold an environment to what forks promise. Raises AssertionError naming the property and the task.

    `actions` plays a task whose answers depend on the world alone, in at least two actions; more is better.
    """
    for task in tasks:
        played = list(actions(task))
        assert len(played) > 1, f"task {task.id}: got {len(played)} actions, expected at least 2"
        async with AsyncExitStack() as stack:
            check = _Case(make_env, task, config or HostConfig(), stack=stack, seed=Stream(seed).at("forks", task.id))
            for rng in ("same", "split"):
                await check.forks(played, rng)


class _Case:
    """One task of one environment."""

    def __init__(
        self, make_env: Callable[[], Env], task: Task, config: HostConfig, *, stack: AsyncExitStack, seed: Stream
    ) -> None:
        self._make_env, self._task, self._config, self._seed = make_env, task, config, seed
        self._store, self._stack = SnapshotStore(), stack
        self._where = f"task {task.id}"

    async def forks(self, actions: Sequence[Action], rng: Rng) -> None:
        """Fork in the middle, let all go different ways, compare."""
        middle = (len(actions) + 1) // 2
        half, whole = await self._undisturbed(actions[:middle]), await self._undisturbed(actions)
        parent, _ = await self._played(actions[:middle])
        idle, strayed, first = await self._forked(parent, 3, rng)
        await self._act(strayed, JUNK[1:2])
        told = await self._act(first, actions[middle:][:1])
        if rng == "same":
            assert told == whole[0][middle : middle + 1], f"{self._where}: a fork sees another world than its parent"
        (second,) = await self._forked(first, 1, rng)
        ends = [await self._act(one, actions[middle + 1 :]) for one in (first, second)]
        rest = await self._act(parent, actions[middle:])
        assert rest == whole[0][middle:], f"{self._where}: what its forks did changed the world of an episode"
        if rng == "same":
            assert ends[0] == whole[0][middle + 1 :], f"{self._where}: a fork comes to another end than its parent"
            assert ends[1] == ends[0], f"{self._where}: a fork of a fork sees another world"
            for host, what in ((first, "a fork"), (second, "a fork of a fork")):
                self._same(await host.score(), whole[1], f"{what} that did the same")
        self._same(await parent.score(), whole[1], "the episode that was forked")
        self._same(await idle.score(), half[1], "a fork that did nothing more")
        await strayed.score()
        held = self._store.statistics().values["snapshots_held"]
        assert held == 0, f"{self._where}: {held:g} snapshots were not freed"

    async def _undisturbed(self, actions: Sequence[Action]) -> tuple[Answers, Score]:
        host, answers = await self._played(actions)
        return answers, await host.score()

    async def _played(self, actions: Sequence[Action]) -> tuple[Host, Answers]:
        host = self._host()
        opened = await host.open(self._task, self._seed)
        assert opened.outcome is None, f"{self._where}: it did not open: {opened.outcome}"
        return host, await self._act(host, actions)

    async def _forked(self, host: Host, n: int, rng: Rng) -> list[Host]:
        made: Sequence[Forked] = await fork(host, n, make_host=self._host, rng=rng)
        refused = {name: count for name, count in self._store.statistics().values.items() if "refused" in name}
        assert made, f"{self._where}: it could not be forked: {refused}"
        for one in made:
            assert one.opened.outcome is None, f"{self._where}: a fork did not begin: {one.opened.outcome}"
        return [one.host for one in made]

    async def _act(self, host: Host, actions: Sequence[Action]) -> Answers:
        answers = []
        for action in actions:
            step = await host.act(action, step_id=str(self._number()))
            failed = step.outcome is not None and step.outcome.failed
            assert not failed, f"{self._where}: action {action.text!r} broke it: {step.outcome}"
            answers.append(step.messages)
        return answers

    def _same(self, got: Score, wanted: Score, who: str) -> None:
        assert got == wanted, f"{self._where}: {who} scored {got}, expected {wanted}"

    def _host(self) -> EnvHost:
        host = EnvHost(self._make_env, config=self._config, clock=SystemClock(), snapshots=self._store)
        self._stack.push_async_callback(host.close)
        return host

    _numbers = 0

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
