"""What the ledger says of a run that goes on, and what the loop makes of it."""

from __future__ import annotations

import pytest

from treadle.agents.limits import Rewards
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError, EnvError, StoreError
from treadle.core.seeds import Stream
from treadle.pipeline.board import Board
from treadle.pipeline.checkpoints import MARK, Checkpoints, Mark, begin_at
from treadle.pipeline.curriculum import ByDifficulty, Place
from treadle.pipeline.generate import AGAIN_FIRST
from treadle.pipeline.past import Admission, Past
from treadle.pipeline.schedule import Recorded, TicketOrder
from treadle.testing.echo_env import EchoTaskset
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore


def key(id, ticket=0, split="train"):
    return GroupKey(id=id, ticket=ticket, task="t", family="", split=split, admitted_version=0)


def admitted(ticket):
    place = {"number": ticket, "cursor": ticket + 1, "skipped_tasks": 0}
    return {"group": f"t{ticket:06d}", "ticket": ticket, "task": "t", "version": 0, **place}


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path, clock=SystemClock()) as made:
        yield made


def past_of(store, updates=4):
    store.flush()
    return Past.read(store.path, updates=updates)


def test_a_new_run_has_no_past(store):
    past, remains = past_of(store)
    assert not past.began
    assert not remains
    assert past.admission(0) is past.batch(1) is past.demonstrations() is None


def test_a_group_that_was_never_told_to_be_admitted_goes_whole(store):
    for ticket in (0, 1):
        Group(key(f"t{ticket:06d}", ticket), sink=store)
    store.event("group.admitted", admitted(0))
    past, remains = past_of(store)
    assert remains.groups == ("t000001",)
    assert past.admission(0) == Admission(task="t", version=0, place=Place(number=0, cursor=1))
    assert past.admission(1) is None


def test_demonstrations_go_unless_all_were_played(store):
    Group(key("demo-00003", 3), sink=store)
    store.event("run.started", {"updates": 4})
    assert past_of(store)[1].groups == ("demo-00003",)
    store.event("coldstart.demos", {"kept": 1})
    past, remains = past_of(store)
    assert not remains
    assert [group.key.id for group in past.demonstrations()] == ["demo-00003"]


def test_what_a_stop_gave_up_is_played_again_and_what_the_schedule_gave_up_is_not(store):
    for ticket in (0, 1):
        Group(key(f"t{ticket:06d}", ticket), sink=store)
        store.event("group.admitted", admitted(ticket))
        store.event("group.dropped", {"ticket": ticket, "reason": "cancelled"})
    store.event("batch.taken", {"update": 1, "tickets": "0"})
    past, remains = past_of(store)
    assert past.given_up == {0: "cancelled"}
    assert past.told("group.dropped", {"ticket": 0})
    assert not past.told("group.dropped", {"ticket": 1})
    assert remains.events == (4,)


@pytest.mark.parametrize(("updates", "label"), [(4, "final"), (6, "update-2")])
def test_the_last_evaluation_stays_the_last_unless_the_run_gets_longer(store, updates, label):
    """One that was made after two updates of four, because the run's tokens were sampled."""
    Group(key("final-00000", split="heldout"), sink=store)
    store.event("run.started", {"updates": 4})
    store.event("evaluation.done", {"label": "final", "update": 2})
    past, remains = past_of(store, updates)
    assert [e["label"] for e in past.evaluations] == [label]
    assert past.groups == {f"{label}-00000"}
    assert bool(remains) == (updates != 4)


def test_another_group_under_a_known_id_is_refused(store):
    Group(key("final-00000", split="heldout"), sink=store)
    store.event("run.started", {"updates": 4})
    past, _ = past_of(store)
    with pytest.raises(StoreError, match="is of another task or version"):
        past.group(key("final-00000", ticket=1, split="heldout"), None)


def test_recorded_batches_are_taken_as_they_were(bench):
    board = Board(clock=VirtualClock(), batches=1, closed=frozenset({0, 2}))
    assert board.next_ticket == 1
    schedule = Recorded(schedule=TicketOrder(groups_per_update=2, lag=1), batch={2: (3, 1)}.get)
    assert schedule.select(board) is None
    loop = bench.set(groups_per_update=2, updates=2, lag=1).loop()
    bench.clock.run(loop.run())
    assert [b["tickets"] for b in bench.trainer.batches] == [[0, 1], [2, 3]]


def test_while_batches_are_recorded_nothing_is_given_up_and_the_schedule_hears_of_all(bench):
    class Hasty(TicketOrder):
        def evict(self, board):
            return (1,)

        def closed(self, entry):
            heard.append(entry.ticket)

    heard = []
    hasty = Hasty(groups_per_update=1, lag=0)
    schedule = Recorded(schedule=hasty, batch={1: (0,)}.get)
    assert schedule.evict(Board(clock=VirtualClock())) == ()
    assert schedule.evict(Board(clock=VirtualClock(), batches=1)) == (1,)
    bench.set(groups_per_update=1, updates=1).run(schedule=hasty)
    assert heard == [0]


def test_what_was_interrupted_goes_first_at_the_engine(bench):
    again = Admission(task="echo-train-1", version=0, place=Place(number=1, cursor=2))
    bench.ledger.past = Past(admissions={1: again})
    engine = bench.engine()
    bench.set(updates=1).run(engine=engine)
    told = {r.cache.trunk: r.priority for r in engine.requests}
    assert told == {"t000000": 0, "t000001": 1 - AGAIN_FIRST, "t000002": 2}


def test_a_loop_begins_behind_its_mark(bench):
    engine = bench.engine()
    engine.version = bench.trainer.version = 2
    bench.run(engine=engine, begin=Mark(stage="rl", update=2))
    assert [b["tickets"] for b in bench.trainer.batches] == [[6, 7, 8], [9, 10, 11]]
    assert [e["update"] for e in bench.ears.named("update.done")] == [3, 4]


def test_a_ticket_waits_for_the_version_that_it_was_admitted_at(bench):
    again = Admission(task="echo-train-3", version=2, place=Place(number=3, cursor=4))
    bench.ledger.past = Past(admissions={3: again})
    bench.set(lag=1, updates=3, groups_per_update=1).run()
    told = {e["ticket"]: (e["version"], e["outstanding"]) for e in bench.ears.named("group.admitted")}
    assert told.get(3, (2, 1))[0] == 2
    assert [b["tickets"] for b in bench.trainer.batches] == [[0], [1], [2]]


def test_another_taskset_than_the_run_began_with_is_refused(bench):
    bench.ledger.past = Past(admissions={0: Admission(task="other", version=0, place=Place(number=0, cursor=1))})
    with pytest.raises(ConfigError, match="task number 0 was 'other' when the run began and is 'echo-train-0' now"):
        bench.run()


def test_batches_that_failed_before_the_interruption_do_not_end_the_run_again(bench):
    bench.taskset = EchoTaskset(("yes",), faults=dict.fromkeys(range(9), "step"))
    bench.set(updates=4, failed_batches=3)
    bench.ledger.past = Past(batches={1: (0, 1, 2), 2: (3, 4, 5)})
    assert bench.run().updates == 4


def test_batches_that_go_on_failing_end_it(bench):
    bench.taskset = EchoTaskset(("yes",), faults=dict.fromkeys(range(20), "step"))
    bench.set(updates=6, failed_batches=3)
    bench.ledger.past = Past(batches={1: (0, 1, 2)})
    with pytest.raises(EnvError, match="3 batches in a row"):
        bench.run()


def test_a_fact_that_was_told_is_told_as_replayed(bench):
    bench.ledger.past = Past(facts=frozenset({("update.done", 1), ("group.trained", 0)}))
    bench.set(updates=2).run()
    assert [e["update"] for e in bench.ears.named("replayed.update.done")] == [1]
    assert [e["update"] for e in bench.ears.named("update.done")] == [2]
    assert [e["ticket"] for e in bench.ears.named("group.trained")] == [1, 2, 3, 4, 5]


def test_a_curriculum_that_chooses_again_chooses_on_like_the_first():
    taskset = EchoTaskset(("a", "b", "c", "d"))

    def pools():
        return ByDifficulty().begin(taskset, group_size=4, rewards=Rewards(), seed=Stream(3))

    first, second = pools(), pools()
    chosen = [first.choose(ticket) for ticket in range(6)]
    assert [second.again(choice.place) for choice in chosen[:4]] == chosen[:4]
    assert [second.choose(ticket) for ticket in (4, 5)] == chosen[4:]
    assert second.state() == first.state()


async def test_a_mark_is_read_as_it_was_saved(bench, tmp_path):
    class Saving:
        version = 3

        def save(self, folder, *, beside):
            folder.mkdir(parents=True)
            for name, text in beside.items():
                (folder / name).write_text(text)

    checkpoints = Checkpoints(tmp_path / "saved", trainer=Saving(), thread=bench.thread, ledger=bench.ledger)
    mark = Mark(stage="rl", update=7, curriculum={"cursor": 9, "pools": [["a", "easy", 0.1, 3.0]]})
    checkpoints.mark = lambda: mark
    await checkpoints.save(update=7)
    assert begin_at(tmp_path / "saved", lambda path, mark: None, say=print) == (tmp_path / "saved/version-000003", mark)


def test_checkpoints_without_a_readable_mark_and_half_written_ones_are_passed_over(tmp_path):
    for name, text in (("version-000001", Mark(stage="rl", update=1).text()), ("version-000002", "["),
                       ("version-000003", Mark().text()), (".version-000004.ab.tmp", "")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / MARK).write_text(text)
    said = []
    start, mark = begin_at(tmp_path, lambda path, mark: None, say=said.append)
    assert (start, mark.update) == (tmp_path / "version-000001", 1)
    assert [f"version-00000{n}" in line for n, line in zip((3, 2, 1), said, strict=True)] == [True, True, True]
    assert "has no checksums" in said[2]
    assert not list(tmp_path.glob(".*"))


async def test_a_mark_tells_of_nothing_that_the_ledger_may_not_hold(tmp_path, bench):
    class Saving:
        version = 1

        def save(self, folder, *, beside):
            folder.mkdir()
            (folder / MARK).write_text(beside[MARK])

    class Admitting:
        """While it settles, another ticket is admitted: its row is not in what is settled."""

        cursor = 3

        async def settle(self):
            self.cursor += 1

    books = Admitting()
    checkpoints = Checkpoints(
        tmp_path / "saved", trainer=Saving(), thread=bench.thread, ledger=bench.ledger, books=books
    )
    checkpoints.mark = lambda: Mark(stage="rl", update=1, curriculum={"cursor": books.cursor})
    saved = await checkpoints.save(update=1)
    assert (Mark.read(saved).curriculum, books.cursor) == ({"cursor": 3}, 4)
