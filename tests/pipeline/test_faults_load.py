"""Two loads that break loops: thousands of rollouts in flight, and one that outlives many policy versions."""

from collections import Counter

import pytest

ROLLOUTS = 2000


def test_two_thousand_rollouts_are_in_flight_at_once_and_every_one_ends(bench):
    engine = bench.engine()
    report = bench.set(group_size=8, groups_per_update=ROLLOUTS // 8, updates=1).run(engine=engine)
    assert engine.most_running == ROLLOUTS
    assert len(bench.shelf.ends) == ROLLOUTS
    assert set(bench.shelf.ends.values()) == {1}
    assert sum(map(len, bench.trainer.batches[0]["rewards"])) == ROLLOUTS
    assert (report.reason, report.most_outstanding, engine.running) == ("done", ROLLOUTS // 8, 0)


def slow(turn):
    """One rollout of ticket 0 takes as long as twelve batches of the others."""
    return 12.0 if turn.rollout.startswith("t000000.1.") else 1.0


@pytest.mark.parametrize(
    ("on_stale", "end", "dropped"),
    [("wait", "ok", []), ("drop", "cancelled", [(0, "cancelled")]), ("mask", "ok", [(0, "stale")])],
)
def test_a_rollout_that_outlives_ten_versions_ends_as_the_config_says(bench, on_stale, end, dropped):
    bench.latency = slow
    bound = 11 if on_stale == "wait" else 10
    bench.set(lag=1, max_staleness=bound, groups_per_update=1, updates=14, on_stale=on_stale)
    report = bench.run()
    told = [(e.name, e.values) for e in bench.ears.events]
    at = next(i for i, (name, v) in enumerate(told) if name == "rollout.done" and v["rollout"] == "t000000.1.0")
    assert sum(name == "update.done" for name, _ in told[:at]) >= 10
    assert told[at][1]["status"] == end
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == dropped
    assert report.worst_staleness <= bound
    trained = [e["ticket"] for e in bench.ears.named("group.trained")]
    assert Counter([*trained, *(ticket for ticket, _ in dropped)]) == Counter(range(14))
    assert set(bench.shelf.ends.values()) == {1}
