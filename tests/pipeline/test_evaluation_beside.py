"""Evaluation beside training: one version, behind all training, the best checkpoint kept, nothing counted twice."""

import asyncio
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from treadle.core.errors import EngineError
from treadle.core.events import Fanout
from treadle.core.ports import WeightRef
from treadle.pipeline.best import best_of
from treadle.pipeline.checkpoints import Checkpoints, Mark
from treadle.pipeline.evaluation import LOW_PRIORITY, Count, Evaluation, EvaluationConfig, Evaluator
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Past
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.trajectory.store import TrajectoryStore, read_events, read_rollouts


def make_evaluator(bench, engine, *, sink=None, **config):
    return Evaluator(
        bench.taskset, bench.player(engine, size=1, seed=9), config=EvaluationConfig(**config),
        version=lambda: engine.version, ledger=bench.ledger, sink=sink or bench.shelf,
    )


def evaluating(bench, engine, **config):
    """What a loop calls between two updates."""

    async def evaluate(update):
        await make_evaluator(bench, engine, **config).run(f"update-{update}", update=update)

    return evaluate


def is_training(rollout):
    return rollout.startswith("t0")


def beside(ears, label):
    """The events while this evaluation ran."""
    names = [(e.name, e.values.get("label")) for e in ears.events]
    return ears.events[names.index(("stage.started", label)) : names.index(("evaluation.done", label))]


# -- one version ---------------------------------------------------------------------------------------------------


def test_no_update_starts_while_an_evaluation_runs_and_training_goes_on_generating(bench):
    bench.latency = lambda turn: 1.0 if is_training(turn.rollout) else 30.0
    engine = bench.engine()
    bench.set(lag=1, updates=5, evaluate_every=2).run(engine=engine, evaluate=evaluating(bench, engine, tasks=4))
    for label in ("update-2", "update-4"):
        during = beside(bench.ears, label)
        assert {e.name for e in during} & {"update.started", "batch.taken", "update.done"} == set()
        assert [e for e in during if e.name == "rollout.done" and e.values["split"] == "train"]
    told = [(e["label"], e["version"], e["total"]) for e in bench.ears.named("evaluation.done")]
    assert told == [("update-2", 2, 4), ("update-4", 4, 4)]


def test_evaluation_waits_at_the_engine_behind_every_training_rollout(bench):
    engine = bench.engine()
    bench.set(lag=1, updates=4, evaluate_every=1).run(engine=engine, evaluate=evaluating(bench, engine, tasks=3))
    training = [r.priority for r in engine.requests if is_training(r.cache.rollout)]
    evaluation = [r.priority for r in engine.requests if not is_training(r.cache.rollout)]
    assert max(training) < LOW_PRIORITY <= min(evaluation)
    assert Counter(evaluation) == {LOW_PRIORITY: 3, LOW_PRIORITY + 1: 3, LOW_PRIORITY + 2: 3}


def test_tokens_of_two_versions_are_an_error_that_names_both(bench):
    engine = bench.engine()
    bench.latency = lambda turn: 2.0
    evaluator = make_evaluator(bench, engine, tasks=4)
    said = (
        r"evaluation final: group final-0000\d depends on policy versions \[0, 1\], expected 0 alone: "
        "no weights may change while an evaluation runs"
    )

    async def load():
        await bench.clock.sleep(0.5)
        await engine.load(WeightRef(version=1))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            with pytest.raises(EngineError, match=said):
                await evaluator.run("final")

    bench.clock.run(main())
    assert bench.ears.named("evaluation.done") == []


class OldKv(ScriptedEngine):
    """Samples under the version of now, on KV of the one before."""

    async def generate(self, request):
        done = await super().generate(request)
        return replace(done, kv_version=done.kv_version - 1)


def test_tokens_on_the_kv_of_another_version_are_an_error(bench):
    evaluator = make_evaluator(bench, OldKv(["yes"], clock=bench.clock, version=3), tasks=2)
    with pytest.raises(EngineError, match=r"depends on policy versions \[2, 3\], expected 3 alone"):
        bench.clock.run(evaluator.run("update-3"))


# -- where a run goes on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "evaluated"), [(0, [2, 4]), (2, [2, 4]), (3, [4]), (4, [4]), (6, [])])
def test_a_loop_that_goes_on_first_evaluates_what_it_was_interrupted_in(bench, begin, evaluated):
    engine = bench.engine()
    engine.version = bench.trainer.version = begin
    seen = []

    async def evaluate(update):
        seen.append((update, bench.trainer.version, len(bench.trainer.batches)))

    bench.set(updates=6, evaluate_every=2)
    bench.run(engine=engine, begin=Mark(stage="rl" if begin else "", update=begin), evaluate=evaluate)
    assert seen == [(update, update, update - begin) for update in evaluated]


def number(rollout):
    """Of the task of an evaluation's rollout."""
    return int(rollout.partition(".")[0][-5:])


def recorded(made, folder, *, killed=None, past=None, remains=None):
    """One evaluation of five tasks, stored. With `killed`, what a kill after two of them leaves is copied there."""
    with TrajectoryStore(folder, clock=made.clock) as store:
        if remains is not None:
            store.clear(remains)

        class Copies:
            def emit(self, event):
                if killed is not None and event.name == "evaluation.progress" and event.values["done"] == 2:
                    store.flush()
                    shutil.copytree(folder, killed)

        made.ledger = Ledger(Fanout(store, made.ears, Copies()), meter=made.meter, rewards=made.rewards, past=past)
        engine = ScriptedEngine(
            lambda turn: "yes", clock=made.clock, latency=lambda turn: 1.0 + 0.25 * number(turn.rollout), version=2
        )
        evaluator = make_evaluator(made, engine, sink=store, tasks=5, at_once=2)
        found = made.clock.run(evaluator.run("update-2", update=2))
    return found, engine


def test_an_evaluation_that_was_killed_keeps_what_it_finished_and_counts_nothing_twice(make_bench, tmp_path):
    whole, again = make_bench(), make_bench()
    for made in (whole, again):
        made.taskset = EchoTaskset(("yes", "no"))
    meant, _ = recorded(whole, tmp_path / "whole", killed=tmp_path / "killed")
    past, remains = Past.read(tmp_path / "killed", updates=4)
    assert (len(remains.rollouts), past.evaluations) == (1, [])
    found, engine = recorded(again, tmp_path / "killed", past=past, remains=remains)
    assert replace(found, seconds=0.0) == replace(meant, seconds=0.0)
    assert (found.overall, found.tokens, found.levels["easy"]) == (Count(3, 5), meant.tokens, Count(3, 5))
    assert sorted(number(r.cache.rollout) for r in engine.requests) == [2, 3, 4]
    assert sorted(number(rollout.id) for _, rollout in read_rollouts(tmp_path / "killed")) == [0, 1, 2, 3, 4]
    told = list(read_events(tmp_path / "killed", prefix="rollout.done"))
    assert sorted(e.values["rollout"] for e in told) == [f"update-2-{i:05d}.0.0" for i in range(5)]
    assert len(list(read_events(tmp_path / "killed", prefix="evaluation.done"))) == 1
    for made in (whole, again):
        made.thread.close()


# -- the best ------------------------------------------------------------------------------------------------------


def evaluation(label, version, solved, total=4):
    return Evaluation(
        label=label, version=version, overall=Count(solved, total), unscored=0, reward_mean=0.0, tokens=1, seconds=1.0,
        temperature=0.0,
    )


def test_the_best_is_the_largest_share_and_the_earliest_of_equals():
    found = [
        evaluation("untouched", 0, 4), evaluation("coldstart", 2, 1), evaluation("update-2", 4, 3),
        evaluation("update-4", 6, 6, total=8), evaluation("final", 8, 2),
    ]
    assert best_of(found).label == "update-2"
    assert best_of(reversed(found)).label == "update-2"
    assert best_of(found[:2]).label == "coldstart"
    assert best_of(found[:1]) is best_of([]) is None


def names(folder):
    return sorted(path.name for path in folder.iterdir())


async def test_the_best_checkpoint_stays_whatever_keep_removes(bench, tmp_path):
    checkpoints = Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger, keep=1)
    held = []
    for version in range(1, 7):
        bench.trainer.version = version
        await checkpoints.save(update=version)
        if version in (2, 5):
            assert await checkpoints.keep_best(update=version)
            assert not await checkpoints.keep_best(update=version)
        held.append([int(name[-6:]) for name in names(tmp_path)])
    assert held == [[1], [2], [2, 3], [2, 4], [5], [5, 6]]
    assert bench.trainer.saved == [1, 2, 3, 4, 5, 6]


async def test_the_best_among_the_newest_takes_no_place_of_theirs_and_none_beside_them(bench, tmp_path):
    checkpoints = Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger, keep=2)
    held = []
    for version in (1, 2, 3, 4):
        bench.trainer.version = version
        await checkpoints.save(update=version)
        if version == 2:
            await checkpoints.keep_best(update=version)
        held.append([int(name[-6:]) for name in names(tmp_path)])
    assert held == [[1], [1, 2], [2, 3], [2, 3, 4]]


async def test_a_version_that_was_not_saved_is_saved_when_it_is_the_best(bench, tmp_path):
    checkpoints = Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger)
    bench.trainer.version = 7
    assert await checkpoints.keep_best(update=7)
    assert (names(tmp_path), checkpoints.best) == (["version-000007"], tmp_path / "version-000007")


async def test_the_last_best_goes_only_when_the_ledger_holds_why(bench, tmp_path):
    seen = []

    class Books:
        """Sees which checkpoints are there while it settles."""

        async def settle(self):
            seen.append(names(tmp_path))

    tmp_path.joinpath("version-000001").mkdir()
    checkpoints = Checkpoints(
        tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger, books=Books()
    )
    checkpoints.best = tmp_path / "version-000001"
    bench.trainer.version = 2
    await checkpoints.keep_best(update=2)
    assert seen == [["version-000001"], ["version-000001", "version-000002"]]
    assert names(tmp_path) == ["version-000002"]
