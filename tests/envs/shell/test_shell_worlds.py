"""Every family at every level in the real sandbox: solutions score 1, near misses and dumps score 0."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import pytest

from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.shell import ShellEnv, ShellTaskset
from treadle.envs.shell.catalog import FAMILIES
from treadle.envs.shell.family import LEVELS
from treadle.envs.shell.taskset import scene
from treadle.envs.task import Task

SPLITS = ("train", "heldout")
ROUND = len(FAMILIES) * len(LEVELS)
AT_ONCE = 4
"""Sandboxes that live at the same time."""

READERS = (
    "cat ",
    "ls",
    "grep ",
    "seq ",
    "true",
    "echo ",
    "wc ",
    "head ",
    "tail ",
    "sort ",
    "find ",
    "cut ",
    "diff ",
    "tac ",
    "awk ",
    "sed -n ",
    "comm ",
    "stat ",
    "du ",
    "tar -t",
    "tar t",
)
"""How commands begin that change no file."""

Judge = Callable[[Task], Awaitable[list[str]]]


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    if reason := BubblewrapSandbox.available():
        pytest.fail(reason)


def workspace_of(turns: Sequence[str]) -> tuple[str, ...]:
    """Rollouts with equal keys may follow each other in one workspace: the ones that change nothing, or the same."""
    commands = tuple(turn.splitlines()[1] for turn in turns[:-1])
    harmless = all(command.startswith(READERS) and "> " not in command for command in commands)
    return ("reading",) if commands and harmless else commands


async def over_a_round(split: str, judge: Judge) -> list[str]:
    """What the judge finds wrong with one task of each family and level."""
    taskset = ShellTaskset(11)
    gate = asyncio.Semaphore(AT_ONCE)
    wrong: list[str] = []

    async def one(index: int) -> None:
        async with gate:
            wrong.extend(await judge(taskset.task(split, index)))

    async with asyncio.TaskGroup() as group:
        for index in range(ROUND):
            group.create_task(one(index))
    return wrong


@pytest.mark.parametrize("split", SPLITS)
async def test_the_scripted_solution_of_every_family_and_level_scores_one(split, ctx, play):
    async def judge(task: Task) -> list[str]:
        env = ShellEnv()
        try:
            await env.reset(task, ctx)
            steps = await play(env, scene(task).turns)
            score = await env.score()
        finally:
            await env.close()
        seen = [message.content for step in steps for message in step.messages]
        fine = score == {"correct": 1.0} and steps[-1].terminated and len(steps) < ShellEnv.max_turns
        return [] if fine else [f"{task.family} {task.level}: {scene(task).turns} saw {seen}"]

    assert await over_a_round(split, judge) == []


async def test_other_ordinary_commands_for_every_easy_and_medium_task_score_one(ctx, play):
    async def judge(task: Task) -> list[str]:
        wrong = [] if scene(task).others or task.level == "hard" else [f"{task.family} {task.level}: no other way"]
        for _, rollouts in groupby(sorted(scene(task).others, key=workspace_of), key=workspace_of):
            env = ShellEnv()
            try:
                await env.reset(task, ctx)
                for turns in rollouts:
                    steps = await play(env, turns)
                    if await env.score() != {"correct": 1.0}:
                        wrong.append(f"{task.family} {task.level}: {turns} saw {steps[0].messages}")
            finally:
                await env.close()
        return wrong

    assert await over_a_round("train", judge) == []


@pytest.mark.parametrize("split", SPLITS)
async def test_near_misses_dumps_and_silence_score_zero_for_every_family_and_level(split, ctx, play):
    async def judge(task: Task) -> list[str]:
        wrong = []
        for _, rollouts in groupby(sorted(scene(task).misses, key=workspace_of), key=workspace_of):
            env = ShellEnv()
            try:
                await env.reset(task, ctx)
                for turns in rollouts:
                    await play(env, turns)
                    if await env.score() != {"correct": 0.0}:
                        wrong.append(f"{task.family} {task.level}: {turns}")
            finally:
                await env.close()
        return wrong

    assert await over_a_round(split, judge) == []
