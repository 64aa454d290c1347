"""The circuit breaker in a run: it opens, tries canaries, closes, and an interruption changes none of it."""

import asyncio
import json
from itertools import pairwise

import pytest

from treadle.core.clock import SystemClock
from treadle.core.events import Fanout
from treadle.pipeline.checkpoints import Mark
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.past import Past
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.store import TrajectoryStore

SETTINGS = {"updates": 14, "breaker_failures": 4, "breaker_tickets": 3, "evaluate_every": 1}
COOL_DOWN = SETTINGS["breaker_tickets"]


class Sick(EchoTaskset):
    """Its kind `bad`, every other task, fails at every step, up to a task of this number."""

    def __init__(self, *, well_from):
        super().__init__(("yes", "bad"))
        self.well_from = well_from

    def task(self, split, index):
        made = super().task(split, index)
        if made.family == "bad" and index < self.well_from:
            made.data["fault"] = "step"
        return made


BEGINNING = (Mark(), 0)
"""Where a run begins, and its version there."""


class Story:
    """A run, whole or in two parts, and what it told."""

    def __init__(self, make_bench, folder, *, lag, well_from=30):
        self.make_bench, self.folder, self.lag, self.well_from = make_bench, folder, lag, well_from
        self.marks = {}
        """By update: the mark, and the version that goes with it."""
        self.told = []

    def play(self, *, begin=BEGINNING, stop_after=None):
        """From a mark to the end, or for so many seconds."""
        bench = self.make_bench()
        bench.taskset = Sick(well_from=self.well_from)
        bench.set(lag=self.lag, **SETTINGS)
        mark, bench.trainer.version = begin
        engine = bench.engine()
        engine.version = bench.trainer.version
        with TrajectoryStore(self.folder, clock=SystemClock()) as store:
            past, remains = Past.read(store.path, updates=SETTINGS["updates"])
            store.clear(remains)
            bench.ledger = Ledger(Fanout(store, bench.ears), meter=bench.meter, rewards=bench.rewards, past=past)
            bench.shelf = store

            async def keep(update):
                found = loop.mark()
                state = json.loads(json.dumps(dict(found.curriculum)))
                self.marks[update] = Mark(stage="rl", update=found.update, curriculum=state), bench.trainer.version

            loop = bench.loop(engine=engine, begin=mark, evaluate=keep)

            async def main():
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(loop.run())
                    if stop_after is not None:
                        await bench.clock.sleep(stop_after)
                        loop.stop()
                return running.result()

            report = bench.clock.run(main())
        bench.thread.close()
        self.told += bench.ears.events
        return report, bench

    def named(self, name):
        return [event.values for event in self.told if event.name == name]

    @property
    def admitted(self):
        return {e["ticket"]: (e["task"], e["skipped_tasks"]) for e in self.named("group.admitted")}


@pytest.mark.parametrize("lag", [0, 1])
def test_it_opens_tries_a_canary_after_each_cool_down_and_closes_when_one_works(make_bench, tmp_path, lag):
    story = Story(make_bench, tmp_path, lag=lag)
    story.play()
    (opened,), (closed,) = story.named("breaker.opened"), story.named("breaker.closed")
    assert (opened["family"], opened["group"], opened["failures"]) == ("bad", "t000001", 4)
    assert opened["message"] == "echo: step failed as it was told to"
    family = [e["family"] for e in story.named("group.admitted")]
    bad = [ticket for ticket, name in enumerate(family) if name == "bad"]
    last = int(closed["group"][1:])
    ahead = (lag + 1) * 3  # tickets that were admitted before the first batch was learned from
    canaries = [ticket for ticket in bad if ahead <= ticket <= last]
    assert len(canaries) >= 2
    assert min(b - a for a, b in pairwise(canaries)) >= COOL_DOWN
    assert family[-6:].count("bad") == 3
    shares = [e.get("breaker.open") for e in story.named("update.done")]
    assert 1 in shares
    assert shares[-1] is None


@pytest.mark.parametrize("lag", [0, 1])
def test_a_kind_that_stays_broken_gets_one_ticket_per_cool_down(make_bench, tmp_path, lag):
    story = Story(make_bench, tmp_path, lag=lag, well_from=10_000)
    story.play()
    family = [e["family"] for e in story.named("group.admitted")]
    tries = [ticket for ticket, name in enumerate(family) if name == "bad" and ticket >= 3 * (lag + 1)]
    assert min(b - a for a, b in pairwise(tries)) >= COOL_DOWN
    assert story.named("breaker.closed") == []
    assert len(story.named("breaker.opened")) == 1
    failed = {e["ticket"] for e in story.named("group.dropped") if e["reason"] == "failed"}
    assert failed == {ticket for ticket, name in enumerate(family) if name == "bad"}


@pytest.fixture(scope="module")
def whole(make_bench, tmp_path_factory):
    """By lag: the story that was not interrupted."""
    made = {}
    for lag in (0, 1):
        made[lag] = Story(make_bench, tmp_path_factory.mktemp(f"whole-{lag}"), lag=lag)
        made[lag].play()
    return made


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seconds", [1.5, 2.5, 4.5, 6.5])
@pytest.mark.parametrize("back", [0, 2])
def test_an_interrupted_run_gives_every_ticket_the_task_that_it_would_have_had(
    make_bench, tmp_path, whole, lag, seconds, back
):
    """Also when its newest checkpoint lies some updates back, which are then trained again from what is stored."""
    story = Story(make_bench, tmp_path, lag=lag)
    report, _ = story.play(stop_after=seconds)
    assert report.reason == "interrupted"
    begin = story.marks.get(max(story.marks, default=0) - back, (Mark(), 0))
    report, _ = story.play(begin=begin)
    assert report.reason == "done"
    assert story.admitted == whole[lag].admitted
    for name in ("breaker.opened", "breaker.closed"):
        assert story.named(name) == whole[lag].named(name)
    trained = [e["ticket"] for e in story.named("group.trained")]
    assert sorted(trained) == sorted(e["ticket"] for e in whole[lag].named("group.trained"))
