"""The simulator: the model of lengths and engines, what it measures, and what it must find."""

import asyncio
import random
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from treadle.core.errors import EngineError
from treadle.core.ports import CacheHint, Request, Sampling, WeightRef
from treadle.core.seeds import Stream
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.schedule import Strictly
from treadle.testing.fleet import Fleet, FleetConfig
from treadle.testing.simulator import Scenario, simulate
from treadle.testing.virtual_clock import VirtualClock
from treadle.testing.workload import SimulatedTasks, Workload

SMALL = Scenario(
    pipeline=PipelineConfig(group_size=2, groups_per_update=12, updates=12, lag=1, max_staleness=2),
    fleet=FleetConfig(engines=4, slots=1), workload=Workload(sigma=1.0, most_tokens=4000), train_tokens_per_s=300.0,
    update_s=1.0,
)


def request(tokens, priority=0, rollout="r"):
    return Request(
        prompt=np.zeros(1, np.int32), sampling=Sampling(max_tokens=tokens), stream=Stream(0),
        cache=CacheHint(rollout=rollout), priority=priority,
    )


def fleet_of(clock, **facts):
    return Fleet(FleetConfig(**{"engines": 1, "slots": 1, "tokens_per_s": 10.0, **facts}), clock=clock, seed=Stream(1))


def test_a_request_takes_the_time_of_its_tokens_and_waits_by_priority():
    clock = VirtualClock()
    fleet = fleet_of(clock)
    ended = []

    async def ask(name, priority):
        await fleet.generate(request(20, priority, name))
        ended.append((name, clock.now()))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            for name, priority in (("first", 5), ("late", 5), ("urgent", 1)):
                tasks.create_task(ask(name, priority))
            await clock.sleep(1)
            assert (fleet.load_signal().waiting, fleet.load_signal().running) == (2, 1)

    clock.run(main())
    assert ended == [("first", 2.0), ("urgent", 4.0), ("late", 6.0)]
    assert (fleet.tokens, fleet.busy_s) == (60.0, 6.0)


def test_tokens_carry_the_versions_that_were_loaded_meanwhile():
    clock = VirtualClock()
    fleet = fleet_of(clock)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(fleet.generate(request(30)))
            for version in (1, 2):
                await clock.sleep(1)
                await fleet.load(WeightRef(version=version))
        return asked.result(), await fleet.generate(request(1))

    first, second = clock.run(main())
    assert (first.versions, first.kv_version, first.oldest_version) == (((0, 1), (1, 1), (2, 1)), 0, 0)
    assert (second.versions, second.kv_version) == (((2, 1),), 0)


def test_a_cancelled_request_frees_its_slot_and_counts_what_it_sampled():
    clock = VirtualClock()
    fleet = fleet_of(clock)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            running, waiting = (tasks.create_task(fleet.generate(request(100))) for _ in range(2))
            await clock.sleep(1)
            waiting.cancel()
            running.cancel()
        await fleet.generate(request(10))
        return clock.now()

    assert clock.run(main()) == pytest.approx(2.0)
    assert fleet.tokens == pytest.approx(20.0)


def test_a_broken_engine_fails_its_requests_and_comes_back():
    clock = VirtualClock()
    fleet = fleet_of(clock, breakdown_s=1.0, repair_s=7.0)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            wear = tasks.create_task(fleet.wear())
            with pytest.raises(EngineError, match="engine 0 broke down"):
                await fleet.generate(request(10_000))
            broken = clock.now()
            with pytest.raises(EngineError):
                await fleet.generate(request(10_000))
            wear.cancel()
        return clock.now() - broken

    assert clock.run(main()) >= 7.0
    assert fleet.breakdowns == 2


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.5])
def test_the_mean_length_is_that_of_the_draws(sigma):
    work = Workload(sigma=sigma, family_sigma=sigma / 2)
    draw = random.Random(3)
    drawn = fmean(work.tokens(i % work.families, draw) for i in range(40_000))
    assert drawn == pytest.approx(work.mean_tokens, rel=0.03)


def test_every_family_comes_equally_often():
    tasks = SimulatedTasks(8)
    seen = [tasks.task("train", i).data["family"] for i in range(64)]
    assert {seen.count(family) for family in range(8)} == {8}


def test_equal_scenarios_give_equal_results():
    first, second = (replace(simulate(SMALL), real_s=0.0) for _ in range(2))
    assert first == second
    assert first != replace(simulate(replace(SMALL, seed=1)), real_s=0.0)


def test_looking_ahead_beats_strict_order_under_a_long_tail():
    tail = replace(SMALL, workload=Workload(sigma=1.5))
    strict = simulate(replace(tail, pipeline=replace(tail.pipeline, schedule=Strictly())))
    ahead = simulate(tail)
    assert ahead.rollouts_per_s > 1.1 * strict.rollouts_per_s
    assert (strict.worst_staleness, ahead.worst_staleness) == (1, 2)
    assert strict.slowest == ahead.slowest == "generate"


def test_with_equal_lengths_the_slowest_stage_never_waits():
    even = replace(SMALL, workload=Workload(sigma=0.0, family_sigma=0.0, env_s=0.0))
    found = simulate(even)
    assert found.share_of_ideal == pytest.approx(1.0, abs=0.02)
    assert found.generate_idle_share == pytest.approx(0.0, abs=0.02)
    assert (found.wasted_share, found.dropped) == (0.0, 0)


def test_a_slow_learner_is_named_and_kept_busy():
    slow = replace(SMALL, train_tokens_per_s=60.0, workload=Workload(sigma=0.5, family_sigma=0.2))
    found = simulate(slow)
    assert found.slowest == "update"
    assert found.update_idle_share == pytest.approx(0.0, abs=0.05)


def test_dropping_what_is_late_wastes_tokens_and_favours_short_rollouts():
    late = replace(SMALL, pipeline=replace(SMALL.pipeline, max_staleness=1, groups_per_update=6, on_stale="drop"))
    found = simulate(late)
    kept = simulate(replace(late, pipeline=replace(late.pipeline, on_stale="wait")))
    assert (found.wasted_share > 0.05, kept.wasted_share) == (True, 0.0)
    assert found.tokens_trained_mean < 0.9 * kept.tokens_trained_mean
    assert found.ended_once and found.worst_staleness <= 1


def test_faults_are_survived_and_counted():
    hard = replace(
        SMALL, workload=Workload(sigma=1.0, failing_share=0.02), fleet=replace(SMALL.fleet, breakdown_s=300.0)
    )
    found = simulate(hard)
    assert (found.updates, found.ended_once, found.worst_staleness <= 2) == (12, True, True)
    assert found.wasted_share > 0


def test_hundreds_of_engines_take_seconds():
    wide = replace(
        SMALL, fleet=FleetConfig(engines=200), train_tokens_per_s=50_000.0,
        pipeline=replace(SMALL.pipeline, groups_per_update=100, updates=3, lag=2, max_staleness=4),
    )
    found = simulate(wide)
    assert found.ended_once
    assert found.real_s < 60


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: FleetConfig(engines=0), "fleet.engines: got 0"), (lambda: Workload(family_sigma=2.0), "family_sigma")],
)
def test_numbers_that_make_no_sense_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
