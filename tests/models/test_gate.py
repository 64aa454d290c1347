"""Readers share, a writer is alone and goes first, and every wait has a name and an end."""

import os
import threading
from collections.abc import Callable

import pytest

from treadle.core.errors import DeadlineExceeded
from treadle.models import Gate


def until(ready: Callable[[], object]) -> None:
    while not ready():
        os.sched_yield()


class Holder:
    """Holds the gate in a thread of its own until told to leave."""

    def __init__(self, gate: Gate, kind: str, name: str) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._hold, args=(getattr(gate, kind), name))
        self.thread.start()

    def _hold(self, enter: Callable, name: str) -> None:
        with enter(name):
            self.inside.set()
            assert self.leave.wait(20)

    def done(self) -> None:
        self.leave.set()
        self.thread.join(20)


def test_readers_share_the_gate() -> None:
    gate = Gate()
    holder = Holder(gate, "read", "engine")
    assert holder.inside.wait(20)
    with gate.read("evaluation", timeout_s=20):
        assert len(gate.holders()) == 2
    holder.done()


def test_a_writer_waits_for_readers_and_the_error_names_both() -> None:
    gate = Gate()
    holder = Holder(gate, "read", "engine step")
    assert holder.inside.wait(20)
    with (
        pytest.raises(DeadlineExceeded, match=r"learner waited 0.01 s to write.*held by engine step \(read, 0"),
        gate.write("learner", timeout_s=0.01),
    ):
        pass
    holder.done()


def test_a_reader_waits_for_a_writer_and_the_error_names_both() -> None:
    gate = Gate()
    holder = Holder(gate, "write", "learner update")
    assert holder.inside.wait(20)
    with (
        pytest.raises(DeadlineExceeded, match=r"engine waited 0.01 s to read.*held by learner update \(write"),
        gate.read("engine", timeout_s=0.01),
    ):
        pass
    holder.done()


def test_a_waiting_writer_goes_before_a_later_reader() -> None:
    gate = Gate()
    first = Holder(gate, "read", "engine")
    assert first.inside.wait(20)
    writer = Holder(gate, "write", "learner")
    until(gate.waiting)
    with (
        pytest.raises(DeadlineExceeded, match=r"late waited.*held by engine"),
        gate.read("late", timeout_s=0.01),
    ):
        pass
    assert not writer.inside.is_set()
    first.done()
    assert writer.inside.wait(20)
    writer.done()


def test_a_writer_that_gives_up_lets_readers_in_again() -> None:
    gate = Gate()
    holder = Holder(gate, "read", "engine")
    assert holder.inside.wait(20)
    with pytest.raises(DeadlineExceeded), gate.write("learner", timeout_s=0.01):
        pass
    with gate.read("late", timeout_s=1):
        assert gate.waiting() == ()
    holder.done()


@pytest.mark.parametrize("outer", ["read", "write"])
@pytest.mark.parametrize("inner", ["read", "write"])
def test_a_thread_cannot_wait_for_itself(outer: str, inner: str) -> None:
    gate = Gate()
    with getattr(gate, outer)("outer"), pytest.raises(RuntimeError, match="already holds"):
        getattr(gate, inner)("inner").__enter__()
    with gate.write("after", timeout_s=1):
        assert gate.writing


def test_an_error_inside_frees_the_gate() -> None:
    gate = Gate()
    with pytest.raises(KeyError), gate.write("learner"):
        raise KeyError
    with pytest.raises(KeyError), gate.read("engine"):
        raise KeyError
    with gate.write("learner", timeout_s=1):
        assert len(gate.holders()) == 1
    assert gate.holders() == ()


def test_writing_is_true_only_in_the_writers_thread() -> None:
    gate = Gate()
    holder = Holder(gate, "write", "learner")
    assert holder.inside.wait(20)
    assert not gate.writing
    holder.done()
