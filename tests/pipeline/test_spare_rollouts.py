"""Spare rollouts in a run: what is no longer needed is cancelled, exactly once, and a resume does not play it again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agents.group_player import RetryBudget
from treadle.core.clock import SystemClock
from treadle.core.errors import EngineError
from treadle.core.events import Fanout
from treadle.core.outcome import Status
from treadle.core.seeds import Stream
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Past
from treadle.trajectory.store import TrajectoryStore

SIZE, SPARE = 4, 2


def tail(turn):
    """Two of six never end by themselves: other ones in every group."""
    index = int(turn.rollout.split(".")[1])
    ticket = int(turn.rollout[1:7])
    return 500.0 if (index + ticket) % 3 == 0 else 1.0 + index


def statuses(bench):
    found = {}
    for end in bench.ears.named("rollout.done"):
        found.setdefault(end["group"], []).append(end["status"])
    return {group: sorted(ends) for group, ends in found.items()}


def test_the_slow_tail_of_every_group_is_cancelled_once(bench):
    engine = bench.engine()
    engine._latency = tail
    bench.set(spare_rollouts=SPARE, updates=2).run(engine=engine)
    assert set(map(tuple, statuses(bench).values())) == {("cancelled",) * SPARE + ("ok",) * SIZE}
    assert [[len(rewards) for rewards in batch["rewards"]] for batch in bench.trainer.batches] == [[SIZE] * 3] * 2
    assert engine.cancelled == 6 * SPARE
    assert set(bench.shelf.ends.values()) == {1}
    assert bench.clock.now() < 20


def test_a_cancelled_spare_is_neither_scored_nor_counted(bench):
    bench.latency = tail
    bench.set(spare_rollouts=SPARE, updates=1).run()
    cancelled = [r for r in bench.shelf.rollouts.values() if r.outcome.status is Status.CANCELLED]
    assert [(r.reward, r.trains) for r in cancelled] == [(None, False)] * (3 * SPARE)
    assert [(e["rollouts"], e["valid"]) for e in bench.ears.named("group.ready")] == [(SIZE, SIZE)] * 3


def test_a_member_that_waits_to_be_played_again_is_not_played_once_it_is_not_needed(bench):
    bench.retries = RetryBudget(infra=5, wait_s=10.0)
    broken = {"t000000.0.0", "t000000.1.0"}
    bench.script = lambda turn: EngineError("lost") if turn.rollout in broken else _mixed(turn)
    engine = bench.engine()
    bench.set(spare_rollouts=SPARE, updates=1).run(engine=engine)
    assert bench.clock.now() < 10
    asked = {request.cache.rollout for request in engine.requests}
    assert not {"t000000.0.1", "t000000.1.1"} & asked
    assert set(bench.shelf.ends.values()) == {1}


def _mixed(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), spare=st.integers(0, 3), lag=st.integers(0, 1), share=st.sampled_from([0.0, 0.3]))
def test_for_all_ties_and_failures_every_rollout_ends_once(make_bench, seed, spare, lag, share):
    """Latencies are whole seconds, so that many end at the same moment."""
    bench = make_bench()

    def draw(turn):
        return Stream(seed).at(turn.rollout).python()

    def script(turn):
        return EngineError("lost") if draw(turn).random() < share else _mixed(turn)

    bench.script, bench.latency = script, lambda turn: float(draw(turn).randrange(1, 4))
    bench.set(spare_rollouts=spare, lag=lag, updates=3)
    bench.run()
    bench.thread.close()
    assert set(bench.shelf.ends.values()) == {1}
    told = [end["rollout"] for end in bench.ears.named("rollout.done")]
    assert sorted(told) == sorted(bench.shelf.rollouts)
    for found in bench.ears.named("group.ready"):
        assert 3 <= found["valid"] <= SIZE + spare
    if share == 0.0:
        assert all(e["valid"] >= SIZE for e in bench.ears.named("group.ready"))
    ended = [e["ticket"] for name in ("group.trained", "group.dropped") for e in bench.ears.named(name)]
    assert sorted(ended) == list(range(9))


@pytest.mark.parametrize("taken", [True, False])
def test_a_run_that_goes_on_plays_no_spare_member_again(make_bench, tmp_path, taken):
    """Whether its batch was taken before the interruption, or the ledger never heard of that."""
    parts = []
    for updates in (1, 2):
        bench = make_bench()
        engine = bench.engine()
        engine._latency = tail
        with TrajectoryStore(tmp_path, clock=SystemClock()) as store:
            past, remains = Past.read(store.path, updates=updates)
            store.clear(remains)
            listener = Fanout(store if taken else Deaf(store, "batch.taken"), bench.ears)
            bench.ledger = Ledger(listener, meter=bench.meter, rewards=bench.rewards, past=past)
            bench.shelf = store
            bench.set(spare_rollouts=SPARE, updates=updates).run(engine=engine)
        bench.thread.close()
        parts.append((bench, engine))
    (first, _), (again, engine) = parts
    assert again.trainer.batches[0] == first.trainer.batches[0]
    assert {request.cache.trunk for request in engine.requests} == {"t000003", "t000004", "t000005"}
    assert set(statuses(again)) == {"t000003", "t000004", "t000005"}


class Deaf:
    """A store that never hears of one kind of event."""

    def __init__(self, store, name):
        self.store, self.name = store, name

    def emit(self, event):
        if event.name != self.name:
            self.store.emit(event)
