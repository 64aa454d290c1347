"""The watchdog over an evaluation: who stays silent is ended by name, played again, and at last counted as unscored."""

from dataclasses import replace

import pytest

from treadle.agents.group_player import RetryBudget
from treadle.agents.limits import RolloutLimits
from treadle.core.errors import InfraError
from treadle.envs.host import HostConfig
from treadle.pipeline.evaluation import EvaluationConfig, Evaluator
from treadle.pipeline.watchdog import WatchdogConfig
from treadle.testing.echo_env import EchoTaskset

FOR_EVER = 1e6
SILENT_S = 50.0


@pytest.fixture
def bench(bench):
    """Every deadline of the calls themselves is out of the way, and one failure is borne."""
    bench.limits = RolloutLimits(generate_s=10 * FOR_EVER)
    bench.host = HostConfig(step_s=10 * FOR_EVER, episode_s=10 * FOR_EVER)
    bench.retries = RetryBudget(infra=1, env=0)
    bench.script = lambda turn: "yes"
    return bench


def evaluator(bench, *, engine=None, **config):
    engine = engine or bench.engine()
    return Evaluator(
        bench.taskset, bench.player(engine, size=1, seed=9), config=EvaluationConfig(**config),
        version=lambda: engine.version, ledger=bench.ledger, sink=bench.shelf, silent_s=SILENT_S,
    )


def stuck(*rollouts):
    return lambda turn: FOR_EVER if turn.rollout in rollouts else 1.0


def acts(bench):
    return [(act["action"], act["wait"], act["for"]) for act in bench.ears.named("watchdog.acted")]


def test_a_rollout_that_hangs_in_its_environment_is_ended_and_counted_as_unscored(bench):
    bench.taskset = EchoTaskset(("yes",), faults={2: "hang"})
    found = bench.clock.run(evaluator(bench, tasks=6, at_once=2).run("final"))
    assert (found.overall.solved, found.overall.total, found.unscored) == (5, 5, 1)
    assert acts(bench) == [
        ("cancel", "rollout final-00002.0.0", "the environment"),
        ("cancel", "rollout final-00002.0.1", "the environment"),
    ]
    assert all(SILENT_S <= act["since_s"] < 1.1 * SILENT_S for act in bench.ears.named("watchdog.acted"))
    ended = [end for end in bench.ears.named("rollout.done") if end["type"] == "silent"]
    assert {(end["status"], end["origin"], end["reward"]) for end in ended} == {("error", "infra", None)}
    assert ended[0]["message"] == "no new segment for 53 s while it waited for the environment"
    assert bench.clock.now() < 3 * SILENT_S


def test_a_rollout_that_the_engine_forgets_is_played_again(bench):
    bench.latency = stuck("final-00001.0.0")
    found = bench.clock.run(evaluator(bench, tasks=4, at_once=1).run("final"))
    assert (found.overall.solved, found.overall.total, found.unscored) == (4, 4, 0)
    assert acts(bench) == [("cancel", "rollout final-00001.0.0", "the engine")]
    assert set(bench.shelf.ends.values()) == {1}


def test_a_rollout_that_the_engine_forgets_every_time_is_counted_as_unscored(bench):
    bench.latency = stuck("final-00001.0.0", "final-00001.0.1")
    found = bench.clock.run(evaluator(bench, tasks=4).run("final"))
    assert (found.overall.total, found.unscored) == (3, 1)
    assert acts(bench)[-1] == ("cancel", "rollout final-00001.0.1", "the engine")


def test_who_makes_segments_in_time_is_left_alone(bench):
    bench.taskset = EchoTaskset(("yes",), data={"turns": 4})
    bench.latency = lambda turn: SILENT_S - 10.0
    found = bench.clock.run(evaluator(bench, tasks=2).run("final"))
    assert (found.overall.total, acts(bench)) == (2, [])
    assert bench.clock.now() > 2 * SILENT_S


def test_an_evaluation_in_which_all_stay_silent_ends_with_what_they_waited_for(bench):
    bench.latency = lambda turn: FOR_EVER
    with pytest.raises(InfraError, match=r"none of 3 rollouts could be scored.*no new segment for 55 s .* the engine"):
        bench.clock.run(evaluator(bench, tasks=3).run("untouched"))
    assert len(acts(bench)) == 6


def test_beside_training_each_watches_over_its_own(bench):
    """The run goes on behind an evaluation in which one rollout stays silent."""
    engine = bench.engine()
    engine._latency = stuck("update-1-00000.0.0", "update-1-00000.0.1")
    quiet = WatchdogConfig(rollout_s=None, shrink_s=None)
    bench.set(updates=3, lag=1, evaluate_every=1, watchdog=replace(quiet, rollout_s=4 * SILENT_S))
    found = []

    async def evaluate(update):
        found.append(await evaluator(bench, engine=engine, tasks=3).run(f"update-{update}", update=update))

    report = bench.run(engine=engine, evaluate=evaluate)
    assert [(one.overall.total, one.unscored) for one in found] == [(2, 1), (3, 0)]
    assert {wait for _, wait, _ in acts(bench)} == {"rollout update-1-00000.0.0", "rollout update-1-00000.0.1"}
    assert report.reason == "done"
