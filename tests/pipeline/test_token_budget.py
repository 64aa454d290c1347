"""A run that ends when so many tokens were sampled."""

import pytest

from treadle.core.errors import ConfigError
from treadle.pipeline.checkpoints import Mark
from treadle.pipeline.config import PipelineConfig


def sampled(bench):
    """Tokens by update."""
    settled = {e["ticket"]: e["tokens"] for name in ("group.ready", "group.dropped") for e in bench.ears.named(name)}
    return [sum(settled[ticket] for ticket in batch["tickets"]) for batch in bench.trainer.batches]


def test_the_run_ends_with_the_update_that_comes_nearest_to_the_budget(make_bench):
    whole = make_bench()
    assert whole.run().updates == 4
    each = sampled(whole)
    two = sum(each[:2])
    for most, updates in (
        (1, 1), (each[0], 1), (each[0] + each[0] // 4, 1), (each[0] + 3 * each[0] // 4, 2), (two, 2),
        (two + two // 8, 2), (two + 3 * two // 8, 3), (sum(each), 4), (10 * sum(each), 4),
    ):
        bench = make_bench()
        report = bench.set(tokens=most).run()
        assert (report.reason, report.updates) == ("done", updates)
        assert sampled(bench) == each[:updates]
        bench.thread.close()
    whole.thread.close()


def test_the_time_left_is_that_of_the_updates_that_the_budget_pays_for(make_bench):
    whole = make_bench()
    whole.run()
    bench = make_bench()
    bench.set(tokens=sum(sampled(whole)[:2])).run()
    for made, left in ((whole, [3, 2, 1, 0]), (bench, [1, 0])):
        done = made.ears.named("update.done")
        assert [e["eta_s"] for e in done] == pytest.approx([done[0]["seconds_s"] * more for more in left])
        made.thread.close()


def test_what_was_sampled_before_an_interruption_counts(make_bench):
    whole = make_bench()
    whole.run()
    each = sampled(whole)
    bench = make_bench()
    engine = bench.engine()
    engine.version = bench.trainer.version = 2
    loop = bench.set(tokens=sum(each[:3])).loop(engine=engine, begin=Mark(stage="rl", update=2, tokens=sum(each[:2])))
    assert bench.clock.run(loop.run()).updates == 3
    assert loop.mark().tokens == sum(each[:3])
    bench.thread.close()
    whole.thread.close()


def test_an_evaluation_does_not_follow_the_last_update_of_a_budget(bench):
    seen = []

    async def evaluate(update):
        seen.append(update)

    bench.set(updates=4, evaluate_every=1, tokens=1).run(evaluate=evaluate)
    assert seen == []


def test_a_mark_of_before_tokens_were_counted_is_read(tmp_path):
    (tmp_path / "run.json").write_text('{"stage": "rl", "update": 3, "curriculum": {}}')
    assert Mark.read(tmp_path) == Mark(stage="rl", update=3)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"pipeline\.tokens: got 0, expected >= 1 or none"):
        PipelineConfig(tokens=0)
