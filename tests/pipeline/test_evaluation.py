"""Held-out evaluation and cold start over fakes."""

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.demonstrator import DemonstrationPlan, Demonstrator
from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError, EngineError, EnvError, TrainingDiverged
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost
from treadle.pipeline.coldstart import ColdStart, ColdStartConfig
from treadle.pipeline.evaluation import EvaluationConfig, Evaluator, wilson
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


def test_a_main_reward_that_no_score_has_is_named_with_the_parts_that_there_are(bench):
    bench.ledger.rewards = Rewards(main="corect")
    with pytest.raises(ConfigError, match=r"rewards\.main: got 'corect', .*in evaluation untouched it had correct$"):
        bench.clock.run(make_evaluator(bench, bench.engine(), tasks=3).run("untouched"))


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


def imitate(bench, *, epochs=2, stop_after=None):
    """A cold start on six demonstrations, four to an update."""
    engine = bench.engine()

    async def make_env():
        return EchoEnv()

    demonstrator = Demonstrator(
        ByteRenderer(), taskset=bench.taskset, rewards=bench.rewards, seed=Stream(7),
        make_host=lambda: EnvHost(make_env, config=bench.host, clock=bench.clock),
    )
    coldstart = ColdStart(
        ColdStartConfig(epochs=epochs, demonstrations_per_update=4), trainer=bench.trainer, engine=engine,
        thread=bench.thread, ledger=bench.ledger, seed=Stream(7),
    )

    async def main():
        found = await demonstrator.collect(DemonstrationPlan(most=6, per_family=6))

        def stop():
            if bench.trainer.version + 1 == stop_after:
                coldstart.stop()

        bench.trainer.during = stop
        return await coldstart.run(found.groups), engine.version

    return bench.clock.run(main())


def test_cold_start_sees_every_demonstration_once_per_epoch(bench):
    assert imitate(bench) == (4, 4)
    batches = [b["tickets"] for b in bench.trainer.batches]
    assert [len(b) for b in batches] == [4, 2, 4, 2]
    assert sorted(batches[0] + batches[1]) == sorted(batches[2] + batches[3]) == list(range(6))
    assert [(e["update"], e["epoch"]) for e in bench.ears.named("coldstart.update")] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_cold_start_that_is_stopped_finishes_its_update_and_loads_it(bench):
    assert imitate(bench, epochs=9, stop_after=3) == (3, 3)


def test_an_evaluation_in_which_nothing_can_be_scored_says_why(bench):
    bench.taskset = EchoTaskset(("yes",), data={"fault": "step"})
    with pytest.raises(EnvError, match=r"evaluation untouched: none of 5 .*echo: step failed"):
        bench.clock.run(make_evaluator(bench, bench.engine(), tasks=5).run("untouched"))


def test_an_evaluation_can_be_cancelled(bench):
    bench.latency = lambda turn: 10.0

    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(make_evaluator(bench, bench.engine(), tasks=5).run("final"))
            await bench.clock.sleep(1)
            task.cancel()
        return task.cancelled()

    assert bench.clock.run(main())
    assert set(bench.shelf.ends.values()) == {1}


def test_no_demonstration_is_an_error_that_says_what_to_do(bench):
    coldstart = ColdStart(
        ColdStartConfig(), trainer=bench.trainer, engine=bench.engine(), thread=bench.thread, ledger=bench.ledger,
        seed=Stream(7),
    )
    with pytest.raises(ConfigError, match="turn the cold start off"):
        bench.clock.run(coldstart.run([]))


def test_a_cold_start_whose_gradients_are_not_finite_stops_and_says_so(bench):
    sound = bench.trainer.train

    def train(groups):
        report = sound(groups)
        bench.trainer.version = 0
        return replace(report, version=0, loss=math.nan, grad_norm=math.nan, skipped=True)

    bench.trainer.train = train
    with pytest.raises(TrainingDiverged, match=r"of 3 updates in a row was not finite .* those of version 0"):
        imitate(bench, epochs=2)
    assert [e["skipped"] for e in bench.ears.named("coldstart.update")] == [True] * 3
