"""Updates that change nothing: skipped, counted, and given up when they come in a row."""

import math

import pytest

from treadle.core.errors import ConfigError, TrainingDiverged
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.past import Past
from treadle.pipeline.trainer import TrainReport


def poisoned(bench, updates, grad_norm=math.nan):
    """Have these updates, counted from 1, be skipped as a learner skips them; how many were tried."""
    train, tried = bench.trainer.train, []

    def sometimes(groups):
        tried.append(len(groups))
        if len(tried) not in updates:
            return train(groups)
        return TrainReport(
            version=bench.trainer.version, loss=math.nan, grad_norm=grad_norm, lr=1e-3, tokens_trained=10, seconds=0.1,
            skipped=True,
        )

    bench.trainer.train = sometimes
    return tried


def test_a_skipped_update_trains_nobody_and_the_run_goes_on(bench):
    poisoned(bench, {2})
    report = bench.run()
    assert (report.reason, report.updates, report.version, report.skipped_updates) == ("done", 4, 3, 1)
    assert [e["skipped"] for e in bench.ears.named("update.done")] == [False, True, False, False]
    assert [(e["ticket"], e["reason"]) for e in bench.ears.named("group.dropped")] == [
        (3, "skipped"), (4, "skipped"), (5, "skipped")
    ]
    assert [e["ticket"] for e in bench.ears.named("group.trained")] == [0, 1, 2, 6, 7, 8, 9, 10, 11]


def test_with_a_lag_the_bound_holds_over_skipped_updates(bench):
    poisoned(bench, {2, 3, 5})
    report = bench.set(lag=2, updates=8).run()
    assert (report.version, report.skipped_updates) == (5, 3)
    assert report.worst_staleness <= 2
    assert all(batch["version"] - min(batch["oldest"]) <= 2 for batch in bench.trainer.batches)


def test_updates_that_are_never_finite_stop_the_run_with_the_numbers(bench):
    tried = poisoned(bench, range(2, 99))
    with pytest.raises(TrainingDiverged, match=r"of 3 updates in a row was not finite \(norm nan.*those of version 1"):
        bench.set(updates=50).run()
    assert len(tried) == 4
    assert [e["version"] for e in bench.ears.named("update.done")] == [1, 1, 1, 1]
    assert set(bench.shelf.ends.values()) == {1}


def test_a_good_update_in_between_starts_the_count_anew(bench):
    poisoned(bench, {1, 2, 4, 5})
    report = bench.set(updates=6, skipped_updates=3).run()
    assert (report.reason, report.version, report.skipped_updates) == ("done", 2, 4)


def test_an_update_with_nothing_to_train_is_no_divergence(bench):
    poisoned(bench, {1, 2, 3}, grad_norm=0.0)
    report = bench.set(updates=4, skipped_updates=1).run()
    assert (report.reason, report.version, report.skipped_updates) == ("done", 1, 0)
    assert {e["reason"] for e in bench.ears.named("group.dropped")} == {"skipped"}


def test_updates_of_before_an_interruption_do_not_end_the_run_again(bench):
    poisoned(bench, {1, 2, 3})
    bench.ledger.past = Past(batches={1: (0, 1, 2), 2: (3, 4, 5)})
    assert bench.set(updates=4, skipped_updates=2).run().version == 1


def test_the_number_is_checked():
    with pytest.raises(ConfigError, match=r"pipeline\.skipped_updates: got 0, expected >= 1"):
        PipelineConfig(skipped_updates=0)
