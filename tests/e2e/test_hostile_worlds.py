"""The real loop among hostile worlds: each fault ends its own rollouts as the table says, the run goes on, and nothing
is left behind. One run holds one world per fault; its two rollouts meet the same fate."""

import asyncio
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import treadle
from treadle import (
    EngineConfig,
    Env,
    HostConfig,
    LearnerConfig,
    PipelineConfig,
    PlainParser,
    Recipe,
    RolloutLimits,
    Step,
    Task,
    World,
    user,
)
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.learner.learner import Learner
from treadle.trajectory.store import read_rollouts


class Panic(BaseException):
    """What native code raises when it panics."""


class Ears:
    def __init__(self, react=lambda event: None):
        self.events = []
        self.react = react

    def emit(self, event):
        self.events.append(event)
        self.react(event)

    def named(self, name):
        return [dict(event.values) for event in self.events if event.name == name]


class Hostile(Env):
    """A world per task: the task's id names what it does."""

    max_turns = 2

    async def reset(self, task, ctx):
        self.fault, self.heard, self.sandbox = task.id, "", None
        if self.fault.startswith("sandbox"):
            self.sandbox = BubblewrapSandbox()
            await self.sandbox.start()
        await self.do("reset")
        prompts = {"reset gives text": "go", "prompt too long": [user("go " * 100_000)]}
        return prompts.get(self.fault, [user("go")])

    async def step(self, action):
        self.heard = action.text
        await self.do("step")
        if self.sandbox is not None:
            await self.in_sandbox()
        given = {
            "step gives NaN": Step(reward=float("nan")), "step gives a tuple": ("", 0.0, True, {}),
            "step gives an object as state": Step(state_key=object()),
            "observation too long": Step(messages=(user("x" * 1_000_000),)),
        }
        return given.get(self.fault, Step(terminated=True))

    async def score(self):
        await self.do("score")
        return {"score gives NaN": float("nan"), "score is huge": 1e300}.get(self.fault, len(self.heard) % 3)

    async def close(self):
        if self.sandbox is not None:
            await self.sandbox.close()
        await self.do("close")

    async def do(self, stage):
        if self.fault == f"{stage} raises":
            raise ValueError("as told")
        if self.fault == f"{stage} panics":
            raise Panic("as told")
        if self.fault == f"{stage} hangs":
            await asyncio.Event().wait()

    async def in_sandbox(self):
        first = self.sandbox._box.first
        if self.fault == "sandbox killed idle":
            os.kill(first, signal.SIGKILL)
            await asyncio.wait_for(self.lost(), 10)
        if self.fault == "sandbox killed at work":
            asyncio.get_running_loop().call_later(0.05, os.kill, first, signal.SIGKILL)
            assert (await self.sandbox.run("sleep 9")).restarted
        if self.fault == "sandbox prints 100 MB":
            assert (await self.sandbox.run("yes | head -c 100000000")).killed == "output"
        assert (await self.sandbox.run("echo here")).output == "here\n"

    async def lost(self):
        while not self.sandbox._box.channel.gone:
            await asyncio.sleep(0)


ENDS = {
    "well": "ok", "sandbox well": "ok", "close raises": "ok", "close panics": "ok", "close hangs": "ok",
    "observation too long": "context", "sandbox killed at work": "ok", "sandbox prints 100 MB": "ok",
    "reset raises": "env", "reset panics": "env", "reset hangs": "env", "reset gives text": "env",
    "prompt too long": "env", "step raises": "env", "step panics": "env", "step hangs": "env",
    "step gives NaN": "env", "step gives a tuple": "env", "step gives an object as state": "env",
    "score raises": "grader", "score panics": "grader", "score hangs": "grader", "score gives NaN": "grader",
    "score is huge": "grader", "sandbox killed idle": "infra",
}
"""What a world does, and how its rollouts end."""


class Worlds:
    """A task per fault; the train split only."""

    def __init__(self, names):
        self.names = tuple(names)

    def size(self, split):
        return len(self.names)

    def task(self, split, index):
        return Task(id=self.names[index], prompt="go", split=split)

    def demonstration(self, task):
        return None


def recipe(tmp_path, names, *, env=Hostile, **pipeline):
    sizes = {"group_size": 2, "groups_per_update": len(names), "updates": 1, "env_retries": 0, "infra_retries": 0}
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return Recipe(
        name="hostile", model="tiny", world=World(tasks=Worlds(names), env=env, reads=PlainParser()),
        limits=RolloutLimits(max_tokens_per_turn=32, max_context=128, stop_strings=tuple(letters)),
        host=HostConfig(setup_s=5, step_s=10, score_s=1, close_s=1), evaluation=None,
        engine=EngineConfig(slots=64, context=128, kv_budget_tokens=16384), learner=LearnerConfig(lr=1e-3),
        algorithm=treadle.Algorithm(rule=treadle.DrGrpo()), pipeline=PipelineConfig(**sizes | pipeline),
        runs=tmp_path / "runs",
    )


def descriptors():
    return {path.name: str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def children():
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run over all faults: its ears, its result, and what it left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        before = descriptors(), children(), set(threading.enumerate())
        ears = Ears()
        result = treadle.train(recipe(tmp_path_factory.mktemp("hostile"), list(ENDS)), view="none", listeners=[ears])
        left = set(descriptors().items()) - set(before[0].items()), children() - before[1]
        threads = [thread.name for thread in set(threading.enumerate()) - before[2]]
    return ears, result, (*left, threads)


def test_each_world_ends_its_own_rollouts_as_the_table_says(run):
    ears, _, _ = run
    ends = defaultdict(set)
    for told in ears.named("rollout.done"):
        failed = told["status"] == "error"
        ends[told["task"]].add(told["origin"] if failed else told["type"] or told["status"])
    assert dict(ends) == {fault: {end} for fault, end in ENDS.items()}


def test_what_is_well_trains_and_the_run_is_done(run):
    ears, result, _ = run
    reasons = {told["task"]: told["reason"] for told in ears.named("group.dropped")}
    failed = {fault for fault, end in ENDS.items() if end in ("env", "grader", "infra")}
    assert {task for task, reason in reasons.items() if reason == "failed"} == failed
    assert (result.reason, result.version) == ("done", 1)


def test_nothing_is_left_behind(run):
    _, _, (open_files, processes, threads) = run
    assert {(name, path) for name, path in open_files if "fonts" not in path} == set()
    assert processes == set()
    assert threads == []


def test_the_store_holds_every_rollout_ended(run):
    _, result, _ = run
    stored = [rollout for _, rollout in read_rollouts(result.folder)]
    assert len(stored) == 2 * len(ENDS)
    assert all(rollout.outcome is not None for rollout in stored)


def test_an_environment_that_changes_the_working_directory_moves_no_files(tmp_path, monkeypatch):
    class Wanderer(Hostile):
        async def step(self, action):
            os.chdir(elsewhere)
            return await super().step(action)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    made = recipe(Path(), ["well"] * 4, env=Wanderer)
    result = treadle.train(made, view="none")
    os.chdir(tmp_path)
    assert result.checkpoint is not None
    assert list(elsewhere.iterdir()) == []
    assert result.checkpoint.is_relative_to(tmp_path / "runs")


def test_a_task_that_user_code_left_and_that_swallows_its_cancellation_does_not_hold_the_run(tmp_path):
    refused, left = [], []

    async def stubborn():
        while not refused:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                refused.append(error)
        await asyncio.Event().wait()

    class Careless(Hostile):
        async def step(self, action):
            if not left:
                left.append(asyncio.ensure_future(stubborn()))
            return await super().step(action)

    result = treadle.train(recipe(tmp_path, ["well"] * 2, env=Careless), view="none")
    assert result.reason == "done"
    assert len(refused) == 1


def test_an_environment_that_cancels_the_run_is_named(tmp_path):
    class Vandal(Hostile):
        async def step(self, action):
            for task in asyncio.all_tasks():
                task.cancel()
            return await super().step(action)

    with pytest.raises(treadle.EnvError, match="cancelled from inside"):
        treadle.train(recipe(tmp_path, ["well"] * 2, env=Vandal), view="none")


def test_members_that_start_from_different_prompts_stop_the_run_with_the_reason(tmp_path):
    class Unlike(Hostile):
        count = 0

        async def reset(self, task, ctx):
            await super().reset(task, ctx)
            Unlike.count += 1
            return [user(f"go {Unlike.count}")]

    with pytest.raises(treadle.EnvError, match=r"3 batches in a row.*starts from another prompt than its group"):
        treadle.train(recipe(tmp_path, ["well"] * 2, env=Unlike, updates=9), view="none")


def test_a_taskset_that_ends_early_is_one_line_and_keeps_what_was_trained(tmp_path):
    made = recipe(tmp_path, ["well"] * 4, updates=3, save_every=1)
    made.world.tasks.size = lambda split: None
    with pytest.raises(treadle.EnvError, match="taskset: task 4 of split 'train': IndexError"):
        treadle.train(made, view="none")
    assert [path.name for path in (tmp_path / "runs").glob("*/checkpoints/*")] == ["version-000001"]


@pytest.mark.parametrize("stage", ["rollout.done", "update.started"])
def test_a_store_that_fails_stops_the_run_as_itself(tmp_path, stage, monkeypatch):
    def fail(self, batch):
        raise treadle.StoreError("run.db cannot be written: as told")

    def react(event):
        if event.name == stage:
            monkeypatch.setattr("treadle.trajectory.store.TrajectoryStore._commit", fail)

    with pytest.raises(treadle.StoreError, match="as told"):
        treadle.train(recipe(tmp_path, ["well"] * 4, updates=50), view="none", listeners=[Ears(react)])


def test_what_was_trained_is_saved_when_the_learner_fails(tmp_path, monkeypatch):
    plain = Learner.accumulate

    def fail(self, *pack):
        if self.updates == 1:
            raise RuntimeError("out of memory")
        return plain(self, *pack)

    monkeypatch.setattr(Learner, "accumulate", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        treadle.train(recipe(tmp_path, ["well"] * 4, updates=3), view="none")
    assert [path.name for path in (tmp_path / "runs").glob("*/checkpoints/*")] == ["version-000001"]
