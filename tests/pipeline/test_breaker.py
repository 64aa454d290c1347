"""The circuit breaker: which kinds get tickets, when one is tried again, and what a run says about it."""

import json

import numpy as np
import pytest

from treadle.core.errors import ConfigError
from treadle.core.outcome import CANCELLED, OK, Origin, Outcome, Status
from treadle.core.ports import Completion, Finish
from treadle.pipeline.breaker import MOST_PASSED, Breaker
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import TicketTasks
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.group import Group, GroupKey

LOST = Outcome(status=Status.ERROR, origin=Origin.ENV, message="no disk")


def begin(words=("good", "bad"), *, failures=4, cool_down=3):
    told = []
    made = Breaker(
        inner=TicketTasks(EchoTaskset(words)), failures=failures, cool_down=cool_down,
        tell=lambda name, values: told.append((name, dict(values))),
    )
    return made, told


def group_of(ticket, outcomes):
    group = Group(GroupKey(id=f"t{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=0))
    prompt = group.prompt(np.array([1], np.int32))
    for index, attempts in enumerate(outcomes):
        for attempt, outcome in enumerate(attempts if isinstance(attempts, tuple) else (attempts,)):
            rollout = group.begin(index, attempt=attempt).id
            said = Completion(
                ids=np.array([5], np.int32), logprobs=np.zeros(1, np.float32), entropy=np.zeros(1, np.float32),
                versions=((0, 1),), kv_version=0, finish=Finish.STOP,
            )
            group.sampled(rollout, said, after=prompt, turn=0)
            group.end(rollout, outcome)
    return group


def play(breaker, tickets, *, broken=()):
    """Families of so many tickets, each closed before the next is chosen."""
    chosen = []
    for ticket in tickets:
        task = breaker.choose(ticket).task
        chosen.append(task.family)
        breaker.learn(task, group_of(ticket, [LOST if task.family in broken else OK] * 2))
    return chosen


def test_while_nothing_fails_tickets_play_their_own_tasks():
    breaker, told = begin()
    assert [breaker.choose(ticket).task.id for ticket in range(6)] == [f"echo-train-{i}" for i in range(6)]
    assert (told, breaker.statistics().values) == ([], {})


def test_failures_in_a_row_open_a_kind_and_canaries_try_it_again():
    breaker, told = begin()
    chosen = play(breaker, range(12), broken=("bad",))
    assert chosen == ["good", "bad", "good", "bad", "good", "good", "good", "bad", "good", "good", "good", "bad"]
    assert told == [
        ("breaker.opened", {
            "family": "bad", "group": "t3", "failures": 4, "message": "no disk", "cool_down_tickets": 3,
        })
    ]
    assert breaker.statistics().values == {"breaker.open": 1}


def test_a_canary_that_works_closes_the_kind():
    breaker, told = begin()
    play(breaker, range(4), broken=("bad",))
    assert play(breaker, range(4, 12)) == ["good", "good", "good", "bad", "good", "bad", "good", "bad"]
    assert [name for name, _ in told] == ["breaker.opened", "breaker.closed"]
    assert breaker.statistics().values == {}


def test_what_was_passed_over_is_counted_as_skipped():
    breaker, _ = begin(("bad", "bad", "bad", "good"))
    breaker.learn(breaker.choose(0).task, group_of(0, [LOST] * 4))
    assert (breaker.choose(1).skipped, breaker.choose(2).skipped) == (2, 3)


def test_one_success_in_between_starts_the_count_anew():
    breaker, told = begin()
    task = EchoTaskset(("bad",)).task("train", 0)
    breaker.learn(task, group_of(0, [LOST, LOST, OK, LOST]))
    breaker.learn(task, group_of(1, [LOST, LOST, CANCELLED]))
    assert (told, breaker.kinds["bad"].failures) == ([], 3)


def test_an_attempt_that_was_played_again_does_not_count():
    breaker, told = begin()
    breaker.learn(EchoTaskset(("bad",)).task("train", 0), group_of(0, [(LOST, OK)] * 8))
    assert told == []


def test_a_canary_that_was_cancelled_says_nothing_and_waits_again():
    breaker, _ = begin(cool_down=0)
    play(breaker, range(4), broken=("bad",))
    breaker.choose(4)
    task = breaker.choose(5).task
    assert (task.family, breaker.kinds["bad"].canary) == ("bad", task.id)
    breaker.learn(task, group_of(5, [CANCELLED]))
    assert (breaker.kinds["bad"].canary, breaker.kinds["bad"].opened) == (None, 5)


def test_only_one_canary_is_out():
    breaker, _ = begin(cool_down=0)
    play(breaker, range(4), broken=("bad",))
    assert [breaker.choose(ticket).task.family for ticket in range(4, 9)] == ["good", "bad", "good", "good", "good"]


def test_when_every_kind_is_open_a_task_is_played_all_the_same():
    breaker, _ = begin(("bad",), cool_down=1000)
    breaker.learn(breaker.choose(0).task, group_of(0, [LOST] * 4))
    assert breaker.choose(1).skipped == MOST_PASSED


def test_a_restored_breaker_goes_on_as_the_first_would_have():
    first, _ = begin()
    other, _ = begin()
    play(first, range(6), broken=("bad",))
    other.restore(json.loads(json.dumps(first.state())))
    assert other.state() == first.state()
    assert play(other, range(6, 12), broken=("bad",)) == play(first, range(6, 12), broken=("bad",))
    with pytest.raises(ValueError, match="breaker state: got"):
        other.restore({"cursor": 1})


def test_tickets_that_are_admitted_again_leave_a_breaker_as_it_was():
    first, _ = begin(cool_down=0)
    play(first, range(4), broken=("bad",))
    kept = json.loads(json.dumps(first.state()))
    places = [first.choose(ticket).place for ticket in range(4, 8)]
    other, _ = begin(cool_down=0)
    other.restore(kept)
    tasks = [other.again(place).task for place in places]
    assert [task.family for task in tasks] == ["good", "bad", "good", "good"]
    assert other.kinds["bad"].canary == first.kinds["bad"].canary == tasks[1].id
    assert other.state() == first.state()
    assert other.choose(8) == first.choose(8)


def test_in_a_run_a_broken_kind_gets_few_tickets_and_two_runs_agree(make_bench):
    played = []
    for _ in range(2):
        bench = make_bench()
        bench.taskset = Broken(("yes", "bad"))
        bench.set(lag=1, updates=12, breaker_failures=8, breaker_tickets=6).run()
        bench.thread.close()
        played.append([e["family"] for e in bench.ears.named("group.admitted")])
        assert bench.ears.names().count("breaker.opened") == 1
    assert played[0] == played[1]
    assert 4 <= played[0].count("bad") <= 12


class Broken(EchoTaskset):
    """Its kind `bad` fails at every step."""

    def task(self, split, index):
        made = super().task(split, index)
        if made.family == "bad":
            made.data["fault"] = "step"
        return made


def test_a_number_out_of_range_names_its_key():
    with pytest.raises(ConfigError, match=r"pipeline\.breaker_failures: got -1"):
        PipelineConfig(breaker_failures=-1)
