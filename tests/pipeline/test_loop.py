"""The three pumps together: order, permits, staleness, failures, stops."""

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agents.group_player import RetryBudget
from treadle.core.errors import DeadlineExceeded, EngineError, EnvError, InfraError
from treadle.core.outcome import Status
from treadle.core.seeds import Stream
from treadle.envs.host import HostConfig
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.schedule import TicketOrder
from treadle.testing.echo_env import EchoTaskset


def long_tail(seed, sigma=1.5):
    """Latencies with a heavy tail, the same in every run."""

    def latency(turn):
        return Stream(seed).at(turn.rollout, turn.number).python().lognormvariate(0.0, sigma)

    return latency


def test_batches_are_the_tickets_in_order(bench):
    bench.latency = long_tail(1)
    report = bench.run()
    assert report.reason == "done"
    assert [b["tickets"] for b in bench.trainer.batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_task_number_is_the_ticket(bench):
    bench.set(updates=2).run()
    assert [e["task"] for e in bench.ears.named("group.admitted")] == [f"echo-train-{i}" for i in range(6)]


@settings(max_examples=25, deadline=None)
@given(
    lag=st.integers(0, 2), groups=st.integers(1, 3), seed=st.integers(0, 10_000),
    sigma=st.sampled_from([0.0, 1.0, 2.5]),
)
def test_for_all_latencies_permits_and_staleness_hold(make_bench, lag, groups, seed, sigma):
    bench = make_bench()
    bench.set(lag=lag, groups_per_update=groups, updates=5, group_size=2)
    bench.latency = long_tail(seed, sigma)
    report = bench.run()
    bench.thread.close()
    permits = (lag + 1) * groups
    assert report.most_outstanding <= permits
    assert all(e["outstanding"] <= permits for e in bench.ears.named("group.admitted"))
    for batch in bench.trainer.batches:
        assert all(batch["version"] - oldest <= lag for oldest in batch["oldest"])
    assert report.worst_staleness <= lag
    assert report.updates == 5


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_staleness_is_reported_and_reaches_the_lag(bench, lag):
    bench.set(lag=lag, updates=8).run()
    seen = [e["staleness"] for e in bench.ears.named("update.done")]
    assert max(seen) == lag


def test_lag_lets_generation_overlap_the_update(bench):
    bench.set(lag=1, updates=3, groups_per_update=1)
    bench.latency = lambda turn: 1.0 + int(turn.rollout[1:7])
    running = []
    loop = bench.loop()
    bench.trainer.during = lambda: running.append(loop.statistics().values["tickets_running"])
    bench.clock.run(loop.run())
    assert running[0] == 1


def test_every_admitted_rollout_ends_exactly_once(bench):
    bench.taskset = EchoTaskset(("yes",), faults={1: "step", 2: "infra", 4: "score", 5: "reset"})
    bench.set(lag=1).run()
    assert set(bench.shelf.ends.values()) == {1}
    begun = Counter(bench.shelf.rollouts.keys())
    told = Counter(e["rollout"] for e in bench.ears.named("rollout.done"))
    assert told == begun


def test_every_ticket_is_trained_or_dropped_exactly_once(bench):
    bench.taskset = EchoTaskset(("yes", "other"), faults={1: "step", 6: "infra"})
    bench.set(lag=1, updates=5).run()
    trained = [e["ticket"] for e in bench.ears.named("group.trained")]
    dropped = [e["ticket"] for e in bench.ears.named("group.dropped")]
    assert sorted(trained + dropped) == list(range(15))


@pytest.mark.parametrize("fault", ["reset", "step", "infra", "score", "hang"])
def test_a_failing_world_never_ends_a_batch(bench, fault):
    bench.host = HostConfig(step_s=5)
    bench.taskset = EchoTaskset(("yes",), faults={1: fault})
    bench.run()
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert bench.ears.named("group.dropped")[0]["reason"] == "failed"


def test_one_failing_rollout_of_a_group_leaves_the_group_in_training(bench):
    bench.retries = RetryBudget(infra=0, env=0)
    bench.script = lambda turn: EngineError("lost") if turn.rollout.startswith("t000001.0.") else mixed_says(turn)
    bench.run()
    assert bench.trainer.batches[0]["tickets"] == [0, 1, 2]
    assert [len(r) for r in bench.trainer.batches[0]["rewards"]] == [4, 3, 4]


def mixed_says(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def test_groups_without_variance_are_dropped_and_shrink_the_batch(bench):
    bench.script = lambda turn: "yes" if turn.rollout.startswith("t000001") else mixed_says(turn)
    bench.run()
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [(1, "zero_variance")]


@pytest.mark.parametrize(("lost", "reason"), [(3, "singleton"), (2, "min_valid")])
def test_groups_with_too_few_valid_rollouts_are_dropped(bench, lost, reason):
    bench.retries = RetryBudget(infra=0, env=0)

    def script(turn):
        broken = turn.rollout.startswith("t000000") and int(turn.rollout.split(".")[1]) < lost
        return EngineError("lost") if broken else mixed_says(turn)

    bench.script = script
    bench.run()
    assert bench.ears.named("group.dropped")[0]["reason"] == reason


def test_an_empty_batch_is_skipped_and_reported(bench):
    bench.script = lambda turn: "yes" if turn.rollout < "t000003" else mixed_says(turn)
    report = bench.run()
    assert (report.updates, report.version) == (4, 3)
    assert [(e["update"], e["reason"], e["dropped"]) for e in bench.ears.named("update.skipped")] == [(1, "empty", 3)]


def test_a_world_that_always_fails_stops_the_run_with_its_reason(bench):
    bench.taskset = EchoTaskset(("yes",), data={"fault": "step"})
    with pytest.raises(EnvError, match=r"3 batches in a row.*echo: step failed"):
        bench.set(updates=50).run()


def test_groups_that_always_lose_too_many_rollouts_stop_the_run_too(bench):
    bench.script = lambda turn: "yes" if turn.rollout.split(".")[1] == "0" else EngineError("as told")
    with pytest.raises(InfraError, match=r"no group of 3 batches in a row had enough.*as told"):
        bench.set(updates=50).run()


def test_machinery_that_always_fails_is_told_apart(bench):
    bench.taskset = EchoTaskset(("yes",), data={"fault": "infra"})
    with pytest.raises(InfraError, match="3 batches in a row"):
        bench.set(updates=50).run()


def test_a_stop_during_an_update_finishes_it_saves_and_returns(bench, tmp_path):
    bench.set(lag=1, updates=20)
    bench.latency = long_tail(3)
    checkpoints = Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger)
    loop = bench.loop(checkpoints=checkpoints)

    async def main():
        running = asyncio.get_running_loop()

        def in_the_middle():
            if bench.trainer.version == 2:
                asked = threading.Event()
                running.call_soon_threadsafe(lambda: (loop.stop(), asked.set()))
                assert asked.wait(5)

        bench.trainer.during = in_the_middle
        return await loop.run()

    report = bench.clock.run(main())
    assert (report.reason, report.version) == ("interrupted", 3)
    assert bench.trainer.saved == [3]
    assert [path.name for path in tmp_path.iterdir()] == ["version-000003"]
    assert bench.ears.names().count("run.stopping") == 1


def test_a_stop_cancels_what_is_in_flight_exactly_once(bench):
    bench.set(lag=1, updates=20)
    bench.latency = lambda turn: 10.0
    loop = bench.loop()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            await bench.clock.sleep(15)
            loop.stop()
            return await running

    report = bench.clock.run(main())
    assert report.reason == "interrupted"
    assert set(bench.shelf.ends.values()) == {1}
    cancelled = [r for r in bench.shelf.rollouts.values() if r.outcome.status is Status.CANCELLED]
    assert cancelled
    assert {e["reason"] for e in bench.ears.named("group.dropped")} == {"cancelled"}
    assert loop.permits.held == 0
    assert bench.clock.now() == pytest.approx(15)


class GivesUp(TicketOrder):
    """Gives up ticket 1 as soon as ticket 0 is ready."""

    def evict(self, board):
        first = board.entries.get(0)
        return (1,) if first is not None and first.settled else ()


def test_a_ticket_that_the_schedule_gives_up_is_cancelled_once(bench):
    bench.latency = lambda turn: 500.0 if turn.rollout.startswith("t000001") else 1.0
    bench.run(schedule=GivesUp(groups_per_update=3, lag=0))
    assert bench.trainer.batches[0]["tickets"] == [0, 2]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [(1, "cancelled")]
    assert bench.clock.now() < 10
    assert set(bench.shelf.ends.values()) == {1}


class NewestFirst(TicketOrder):
    """Leaves ticket 0 lying until its tokens are two versions old."""

    def select(self, board):
        wanted = (1, 2, 0, 3)[board.batches]
        return (wanted,) if wanted in board.entries and board.entries[wanted].settled else None


def test_a_group_past_the_staleness_bound_is_dropped_when_its_batch_is_taken(bench):
    bench.set(lag=1, groups_per_update=1, updates=4)
    report = bench.run(schedule=NewestFirst(groups_per_update=1, lag=1))
    assert [batch["tickets"] for batch in bench.trainer.batches] == [[1], [2], [3]]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [(0, "stale")]
    assert report.worst_staleness <= 1


class Slow:
    """A store that has no room for a while."""

    def __init__(self, clock):
        self.clock = clock
        self.asked = 0

    async def room(self):
        self.asked += 1
        await self.clock.sleep(5.0)


def test_a_ticket_starts_when_the_store_has_room(bench):
    store = Slow(bench.clock)
    bench.set(updates=1).run(store=store)
    assert store.asked == 3
    assert bench.clock.now() >= 15.0


def test_a_loop_that_stalls_says_who_waits_for_what(bench):
    class Deaf(type(bench.engine())):
        async def generate(self, request):
            await bench.clock.sleep(1e9)

    bench.set(stall_s=100)
    with pytest.raises(DeadlineExceeded, match=r"waits for .*nothing happened for 100 s; ticket 0 running since 100 s"):
        bench.run(engine=Deaf([], clock=bench.clock))
    assert "waits for" in bench.ears.named("wait.expired")[0]["what"]


def test_an_update_past_its_deadline_is_named(bench):
    bench.set(update_s=0.05)
    release = threading.Event()
    bench.trainer.during = lambda: release.wait(5)

    async def main():
        try:
            await bench.loop().run()
        finally:
            release.set()

    bench.clock.grace_s = 0.1
    with pytest.raises(DeadlineExceeded, match=r"update 1: not finished after 0\.05 s"):
        bench.clock.run(main())


def test_a_trainer_that_fails_stops_the_run_with_its_own_error(bench):
    def fail():
        raise ValueError("no gradient")

    bench.trainer.during = fail
    with pytest.raises(ValueError, match="no gradient"):
        bench.run()
    assert set(bench.shelf.ends.values()) == {1}


def test_checkpoints_are_saved_on_the_way_and_old_ones_go(bench, tmp_path):
    bench.set(updates=6, save_every=2, keep_checkpoints=2)
    checkpoints = Checkpoints(tmp_path, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger, keep=2)
    bench.run(checkpoints=checkpoints)
    assert bench.trainer.saved == [2, 4, 6]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-000004", "version-000006"]


def test_evaluations_between_updates_see_one_version(bench):
    seen = []

    async def evaluate(update):
        before = bench.trainer.version
        await bench.clock.sleep(100)
        seen.append((update, before, bench.trainer.version))

    bench.set(lag=1, updates=5, evaluate_every=2).run(evaluate=evaluate)
    assert seen == [(2, 2, 2), (4, 4, 4)]


def test_every_version_that_the_engine_was_given_is_told(bench):
    bench.set(updates=3).run()
    told = bench.ears.named("weights.published")
    assert [(e["update"], e["version"]) for e in told] == [(1, 1), (2, 2), (3, 3)]
    assert all(e["seconds_s"] >= 0 for e in told)
    names = bench.ears.names()
    assert names.index("update.started") < names.index("weights.published") < names.index("update.done")


def test_an_update_tells_rates_idle_shares_and_counts(bench):
    bench.run()
    first = bench.ears.named("update.done")[0]
    assert (first["update"], first["updates"], first["version"], first["groups"], first["rollouts"]) == (1, 4, 1, 3, 12)
    assert first["solved_share"] == pytest.approx(0.5)
    assert first["tokens_per_s"] == pytest.approx(first["tokens_generated"] / first["seconds_s"])
    assert first["regime"] == "generate"
    assert first["generate_idle_share"] == pytest.approx(0.0)
    assert first["update_idle_share"] == pytest.approx(1.0)
    assert first["stat.ratio"] == 1.0


def test_two_runs_tell_the_same_story(bench, make_bench):
    other = make_bench()
    for one in (bench, other):
        one.set(lag=1)
        one.latency = long_tail(5)
        one.run()
    other.thread.close()
    assert [(e.name, e.at) for e in bench.ears.events] == [(e.name, e.at) for e in other.ears.events]
