"""`check_env`: what every environment must hold, tried through the host that will run it.

Each task is opened twice from the same seed and played with the same actions: the prompt must be the same both times,
and the answers too when the environment calls itself deterministic. Steps and scores must be well-formed, no action of
the model may count as a failure of the environment, junk may not score like a solution, and closing works at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.messages import ToolCall
from treadle.core.seeds import Stream
from treadle.envs.env import Env, EnvContext, Fork
from treadle.envs.host import EnvHost, HostConfig, Opened, Score
from treadle.envs.step import Step
from treadle.envs.task import Task

JUNK = (
    Action(text=""),
    Action(text="I do not know what to do. \0 <|im_end|> ```"),
    Action(text="call", calls=(ToolCall(name="no_such_tool", arguments={}, id="junk-1"),)),
    Action(text="call", calls=(ToolCall(name="no_such_tool", arguments=None, raw="{", id="junk-2"),)),
)
"""Actions that no environment may stumble over."""

Played = tuple[Opened, list[Step], Score]


async def check_env(
    make_env: Callable[[], Env],
    tasks: Sequence[Task],
    *,
    gold: Callable[[Task], Sequence[Action]] | None = None,
    junk_most: float = 0.5,
    config: HostConfig | None = None,
    seed: int = 0,
) -> None:
    """Hold an environment to its contract. Raises AssertionError naming the property and the task.

    `gold` gives a task's solution, which must score at least 1; every junk action alone must score at most `junk_most`.
    """
    await _close_comes_early(make_env)
    for task in tasks:
        check = _Case(make_env, task, config or HostConfig(), Stream(seed).at("check_env", task.id))
        for junk in JUNK:
            score = await check.twice([junk])
            reward = score.reward
            assert reward is None or reward <= junk_most, f"task {task.id}: junk {junk.text!r} scored {reward}"
        if gold is not None:
            reward = (await check.twice(gold(task))).reward
            assert reward is not None, f"task {task.id}: the gold answer was not scored"
            assert reward >= 1, f"task {task.id}: the gold answer scored {reward}, expected at least 1"
        await check.restores()


async def _close_comes_early(make_env: Callable[[], Env]) -> None:
    host = EnvHost(make_env, config=HostConfig(), clock=SystemClock())
    await host.close()
    await host.close()
    env = make_env()
    closing = env.close()
    if closing is not None:
        await closing


class _Case:
    """One task of one environment."""

    def __init__(self, make_env: Callable[[], Env], task: Task, config: HostConfig, seed: Stream) -> None:
        self._make, self._task, self._config, self._seed = make_env, task, config, seed

    async def twice(self, actions: Sequence[Action]) -> Score:
        """Play the same actions from the same seed twice and compare."""
        first, second = await self._play(actions), await self._play(actions)
        where = f"task {self._task.id}"
        assert first[0].messages == second[0].messages, f"{where}: two resets from one seed gave two prompts"
        if self._make().deterministic:
            answers = [[step.messages for step in steps] for _, steps, _ in (first, second)]
            assert answers[0] == answers[1], f"{where}: deterministic, but equal actions got two answers"
            assert first[2].parts == second[2].parts, f"{where}: deterministic, but scored {first[2]} and {second[2]}"
        return first[2]

    async def _play(self, actions: Sequence[Action]) -> Played:
        host = EnvHost(self._make, config=self._config, clock=SystemClock())
        where = f"task {self._task.id}"
        try:
            opened = await host.open(self._task, self._seed)
            assert opened.outcome is None, f"{where}: reset failed: {opened.outcome}"
            names = [tool.name for tool in opened.tools]
            assert len(set(names)) == len(names), f"{where}: tool names must be unique, got {names}"
            assert opened.max_turns >= 1, f"{where}: max_turns is {opened.max_turns}, expected at least 1"
            steps: list[Step] = []
            for number, action in enumerate(actions):
                step = await host.act(action, step_id=str(number))
                steps.append(step)
                failed = step.outcome is not None and step.outcome.failed
                assert not failed, f"{where}: action {action.text!r} broke it: {step.outcome}"
                assert await host.act(action, step_id=str(number)) is step, f"{where}: a step was played twice"
                if step.done:
                    break
            score = await host.score()
            assert score.outcome is None, f"{where}: scoring failed: {score.outcome}"
            return opened, steps, score
        finally:
            await host.close()

    async def restores(self) -> None:
        """A restored copy stands where the original stood, by its digest."""
        env, copy = self._make(), self._make()
        if env.fork not in (Fork.COPY, Fork.NATIVE):
            return
        try:
            for one in (env, copy):
                context = EnvContext(rng=self._seed.python(), seed=self._seed, clock=SystemClock())
                await _settled(one, one.reset, self._task, context)
            await _settled(env, env.step, JUNK[1])
            snapshot = await _settled(env, env.snapshot)
            await _settled(copy, copy.restore, snapshot)
            digests = env.digest(), copy.digest()
            assert digests[0] == digests[1], f"task {self._task.id}: restore led to another digest"
        finally:
            for one in (env, copy):
                await _settled(one, one.close)


async def _settled(env: Env, method: Callable[..., object], *arguments: object) -> object:
    """The value of a method, be it a coroutine function or not."""
    return await env.caller.call(method, *arguments, limit_s=60.0)
