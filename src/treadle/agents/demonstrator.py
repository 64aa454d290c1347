"""Demonstrations: scripted solutions played through the real environment, kept as data to imitate.

The turns come from the taskset, the observations from the world and the tokens from the same renderer, so a
demonstration is what the policy would have seen and sampled had it solved the task. It is stored as a group of one
rollout whose actions have the author `demo`. One that does not reach the bar is thrown away: a script is not trusted,
the world's score is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.agents.limits import Rewards, chars_beyond
from treadle.agents.ports import Rendering
from treadle.core.errors import EnvError
from treadle.core.outcome import CANCELLED, OK, Origin, Outcome, failure, limit
from treadle.core.seeds import Stream
from treadle.envs.host import Host
from treadle.envs.task import Task, Taskset, demonstration_of, size_of, task_of
from treadle.trajectory.group import Group, GroupKey, Sink

HOPELESS = 32
"""So many failures and nothing else end the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationPlan:
    """Which demonstrations to collect."""

    most: int = 96
    """How many at most, over all families."""
    per_family: int = 4
    """How many at most of one family."""
    split: str = "train"
    first: int = 0
    """Task number to start from."""
    tries: int = 1000
    """Task numbers to look at, at most."""
    at_once: int = 16
    """How many are played at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """What was collected."""

    groups: tuple[Group, ...]
    """One rollout each, in the order of the task numbers."""
    tried: int
    wrong: int
    """Played to the end, did not reach the bar."""
    failed: int
    """The environment or its grader failed."""

    @property
    def tokens(self) -> int:
        """Tokens that a demonstrator wrote."""
        return sum(len(s) for g in self.groups for s in g.segments.values() if s.is_action)

    @property
    def families(self) -> tuple[str, ...]:
        """Families that have at least one."""
        return tuple(sorted({g.key.family for g in self.groups}))


class Demonstrator:
    """Plays scripted turns. `max_context` is the longest path that is kept."""

    def __init__(
        self, renderer: Rendering, *, taskset: Taskset, make_host: Callable[[], Host], rewards: Rewards,
        seed: Stream, max_context: int = 2048, sink: Sink | None = None,
    ) -> None:
        self.taskset = taskset
        self.renderer = renderer
        self.make_host = make_host
        self.rewards = rewards
        self.seed = seed
        self.max_context = max_context
        self.sink = sink

    async def collect(self, plan: DemonstrationPlan) -> Demonstrations:
        """Walk the split in order and keep what is correct, within the caps.

        Raises EnvError when every single one failed: then it is not the scripts.
        """
        kept: list[Group] = []
        families: dict[str, int] = {}
        tried, failed, why = 0, 0, ""
        size = size_of(self.taskset, plan.split)
        end = plan.first + (plan.tries if size is None else min(plan.tries, size - plan.first))
        at = plan.first
        while at < end and len(kept) < plan.most and not (failed == tried >= HOPELESS):
            chosen: list[tuple[int, Task, Sequence[str]]] = []
            taken = dict(families)
            room = min(plan.at_once, plan.most - len(kept))
            while at < end and len(chosen) < room:
                task = task_of(self.taskset, plan.split, at)
                turns = demonstration_of(self.taskset, task)
                if turns is not None and taken.get(task.family, 0) < plan.per_family:
                    taken[task.family] = taken.get(task.family, 0) + 1
                    chosen.append((at, task, turns))
                at += 1
            for group in await self._play_all(chosen):
                tried += 1
                rollout = next(iter(group.rollouts.values()))
                if self.rewards.solved(rollout):
                    kept.append(group)
                    families[group.key.family] = families.get(group.key.family, 0) + 1
                elif not rollout.trains:
                    failed += 1
                    why = "it got no score" if rollout.outcome is None else _line(rollout.outcome)
        if tried and failed == tried:
            raise EnvError(f"none of {tried} demonstrations could be played to its end; the last one: {why}")
        return Demonstrations(groups=tuple(kept), tried=tried, wrong=tried - failed - len(kept), failed=failed)

    async def play(self, number: int, task: Task, turns: Sequence[str]) -> Group:
        """Play one script; the group's rollout says how it ended. Raises nothing but CancelledError."""
        key = GroupKey(
            id=f"demo-{number:05d}", ticket=number, task=task.id, family=task.family, split=task.split,
            admitted_version=0,
        )
        group = Group(key, sink=self.sink)
        rollout = group.begin(0).id
        host = self.make_host()
        try:
            outcome = await self._turns(group, rollout, host, task, turns)
            scored = False
            if outcome.scored:
                score = await host.score()
                outcome = score.outcome or outcome
                for name, value in (score.parts or {}).items():
                    group.pay(rollout, name, value, train=self.rewards.trains(name))
                scored = score.outcome is None and score.parts is not None
            group.end(rollout, outcome, scored=scored)
        except asyncio.CancelledError:
            group.end(rollout, CANCELLED, scored=False)
            raise
        # Boundary of a rollout: a script or a world that fails costs one demonstration, not the run.
        except Exception as error:
            group.end(rollout, failure(Origin.ENV, error), scored=False)
        finally:
            await host.close()
        return group

    async def _play_all(self, chosen: Sequence[tuple[int, Task, Sequence[str]]]) -> list[Group]:
        async with asyncio.TaskGroup() as players:
            running = [players.create_task(self.play(*one), name=f"demo-{one[0]}") for one in chosen]
        return [task.result() for task in running]

    async def _turns(
        self, group: Group, rollout: str, host: Host, task: Task, turns: Sequence[str]
    ) -> Outcome:
        opened = await host.open(task, self.seed.at("env", group.key.ticket), rollout=rollout)
        if opened.outcome is not None:
            return opened.outcome
        self._refuse_long(task, chars_beyond(self.max_context, opened.messages), "characters")
        at = group.prompt(self.renderer.first(opened.messages, opened.tools))
        length = len(at)
        for turn, text in enumerate(turns):
            ids = self.renderer.demonstration(text)
            parsed = self.renderer.parse(ids, turn=turn)
            at = group.demonstrated(rollout, ids, after=at, turn=turn, spans=parsed.spans)
            length += len(ids)
            if length > self.max_context:
                self._refuse_long(task, length, "tokens")
            step = await host.act(parsed.action, step_id=f"{rollout}:{turn}")
            if step.reward:
                group.pay(rollout, "step", step.reward, on=at, train=self.rewards.trains("step"))
            if step.outcome is not None or step.terminated:
                return step.outcome or OK
            if turn + 1 < len(turns):
                self._refuse_long(task, chars_beyond(self.max_context, step.messages), "characters")
                bridge = self.renderer.bridge(step.messages, ended=True)
                at = group.observed(rollout, bridge, after=at, turn=turn, tier=host.tier)
                length += len(bridge)
        return limit("turns", "the script ended before the environment did")

    def _refuse_long(self, task: Task, size: int, unit: str) -> None:
        if size:
            raise EnvError(f"task {task.id}: a demonstration of {size} {unit} is longer than {self.max_context} tokens")


def _line(outcome: Outcome) -> str:
    return f"({outcome.status}, {outcome.origin}) {outcome.type}: {outcome.message}"
