"""Held-out evaluation, cold start and the whole run over fakes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.demonstrator import DemonstrationPlan, Demonstrator
from treadle.core.errors import ConfigError, EngineError
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.coldstart import ColdStart, ColdStartConfig
from treadle.pipeline.evaluation import EvaluationConfig, Evaluator, wilson
from treadle.pipeline.run import RunParts, TrainingRun
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset


def make_evaluator(bench, engine, **config):
    return Evaluator(
        bench.taskset, bench.player(engine, size=1, seed=9), config=EvaluationConfig(**config),
        version=lambda: bench.trainer.version, ledger=bench.ledger, sink=bench.shelf,
    )


def says_first_word(turn):
    return "yes"


@pytest.mark.parametrize(
    ("solved", "total", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)]
)
def test_wilson_intervals(solved, total, low, high):
    assert wilson(solved, total) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 300), st.integers(1, 300))
def test_for_all_counts_the_interval_holds_the_share(solved, total):
    solved = min(solved, total)
    low, high = wilson(solved, total)
    assert 0.0 <= low <= solved / total + 1e-12
    assert solved / total - 1e-12 <= high <= 1.0


def test_counts_are_per_level_and_family(bench):
    bench.taskset = EchoTaskset(("yes", "no", "maybe"))
    bench.script = says_first_word
    found = bench.clock.run(make_evaluator(bench, bench.engine(), tasks=9, at_once=2).run("untouched"))
    assert (found.overall.solved, found.overall.total) == (3, 9)
    assert {name: (c.solved, c.total) for name, c in found.families.items()} == {
        "yes": (3, 3), "no": (0, 3), "maybe": (0, 3)
    }
    values = bench.ears.named("evaluation.done")[0]
    assert (values["level.easy.solved"], values["level.easy.total"], values["family.yes.solved"]) == (3, 9, 3)
    assert values["low_share"] < values["solved_share"] < values["high_share"]


def test_failures_are_counted_apart(bench):
    bench.taskset = EchoTaskset(("yes",), faults={1: "step", 3: "score"})
    bench.script = says_first_word
    found = bench.clock.run(make_evaluator(bench, bench.engine(), tasks=6).run("final"))
    assert (found.overall.solved, found.overall.total, found.unscored) == (4, 4, 2)


def test_at_most_so_many_play_at_once(bench):
    engine = bench.engine()
    bench.clock.run(make_evaluator(bench, engine, tasks=20, at_once=4).run("final"))
    assert engine.most_running == 4


def test_two_evaluations_draw_the_same_noise(bench):
    engine = bench.engine()
    evaluator = make_evaluator(bench, engine, tasks=3, at_once=1)

    async def main():
        await evaluator.run("a")
        await evaluator.run("b")

    bench.clock.run(main())
    streams = [r.stream for r in engine.requests]
    assert streams[:3] == streams[3:]


def test_a_version_that_moves_meanwhile_is_an_error(bench):
    evaluator = make_evaluator(bench, bench.engine(), tasks=4)

    async def move():
        await bench.clock.sleep(0.5)
        bench.trainer.version += 1

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(move())
            with pytest.raises(EngineError, match="went from version 0 to 1"):
                await evaluator.run("final")
        return bench.trainer.version

    assert bench.clock.run(main()) == 1


def make_run(bench, tmp_path, *, coldstart=True, updates=3):
    engine = bench.engine()
    bench.set(updates=updates, evaluate_every=2)

    async def make_env():
        return EchoEnv()

    parts = RunParts(
        ledger=bench.ledger, make_loop=lambda between: bench.loop(engine=engine, evaluate=between),
        evaluator=make_evaluator(bench, engine, tasks=4, untouched_tasks=2),
        demonstrator=Demonstrator(
            ByteRenderer(), taskset=bench.taskset, rewards=bench.rewards, seed=Stream(7),
            make_host=lambda: EnvHost(make_env, config=bench.host, clock=bench.clock),
        ),
        demonstrations=DemonstrationPlan(most=6, per_family=6),
        coldstart=ColdStart(
            ColdStartConfig(epochs=2, demonstrations_per_update=4), trainer=bench.trainer, engine=engine,
            thread=bench.thread, ledger=bench.ledger, seed=Stream(7),
        ) if coldstart else None,
        checkpoints=Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger),
    )
    return TrainingRun(parts, version=lambda: bench.trainer.version, facts={"run": "test"})


def test_a_run_goes_through_all_its_stages(bench, tmp_path):
    report = bench.clock.run(make_run(bench, tmp_path).run())
    assert report.reason == "done"
    assert [(e.label, e.overall.total) for e in report.evaluations] == [
        ("untouched", 2), ("coldstart", 4), ("update-2", 4), ("final", 4)
    ]
    assert [e.version for e in report.evaluations] == [0, 4, 6, 7]
    assert (report.version, bench.trainer.saved) == (7, [7])
    stages = [e["stage"] for e in bench.ears.named("stage.started")]
    assert stages == ["evaluation", "demonstrations", "coldstart", "evaluation", "rl", "evaluation", "evaluation"]
    assert bench.ears.names()[0] == "run.started"
    assert bench.ears.names()[-1] == "run.done"


def test_cold_start_sees_every_demonstration_once_per_epoch(bench, tmp_path):
    bench.clock.run(make_run(bench, tmp_path, updates=0).run())
    batches = [b["tickets"] for b in bench.trainer.batches]
    assert [len(b) for b in batches] == [4, 2, 4, 2]
    assert sorted(batches[0] + batches[1]) == sorted(batches[2] + batches[3]) == list(range(6))
    assert [(e["update"], e["epoch"]) for e in bench.ears.named("coldstart.update")] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_rl_alone_starts_from_the_untouched_model(bench, tmp_path):
    report = bench.clock.run(make_run(bench, tmp_path, coldstart=False).run())
    assert report.evaluation("coldstart") is None
    assert report.version == 3


def test_no_demonstration_is_an_error_that_says_what_to_do(bench):
    coldstart = ColdStart(
        ColdStartConfig(), trainer=bench.trainer, engine=bench.engine(), thread=bench.thread, ledger=bench.ledger,
        seed=Stream(7),
    )
    with pytest.raises(ConfigError, match="turn the cold start off"):
        bench.clock.run(coldstart.run([]))


@pytest.mark.parametrize(("when", "version"), [(0.5, 0), (5.0, 4)])
def test_a_stop_in_any_stage_saves_and_returns(bench, tmp_path, when, version):
    bench.latency = lambda turn: 4.0
    run = make_run(bench, tmp_path, updates=50)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(run.run())
            await bench.clock.sleep(when)
            run.stop()
        return task.result()

    report = bench.clock.run(main())
    assert (report.reason, report.version) == ("interrupted", version)
    assert bench.trainer.saved == ([version] if version else [])
    assert bench.clock.now() < when + 1
    assert set(bench.shelf.ends.values()) <= {1}
