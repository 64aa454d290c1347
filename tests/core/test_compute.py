"""The compute thread: one thread for everybody's work, in the order of asking, errors where they belong."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from treadle.core import compute
from treadle.core.compute import ComputeThread

WAIT_S = 10.0


def test_whoever_asks_one_thread_does_the_work() -> None:
    with ThreadPoolExecutor(4) as pool:
        threads = {pool.submit(compute.run, threading.get_ident).result(WAIT_S) for _ in range(16)}
    threads.add(compute.run(threading.get_ident))

    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_pieces_go_in_the_order_of_asking() -> None:
    thread, begun, go, order = ComputeThread(), threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        assert go.wait(WAIT_S)
        order.append(0)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(thread.run, first)]
        assert begun.wait(WAIT_S)
        for number in (1, 2, 3):
            asked.append(pool.submit(thread.run, lambda number=number: order.append(number)))
            while thread.waiting < number:  # it is in the queue before the next one asks
                threading.Event().wait(0.001)
        go.set()
        for one in asked:
            one.result(WAIT_S)

    assert order == [0, 1, 2, 3]


def test_what_a_piece_raises_is_raised_where_it_was_asked_for_and_the_thread_goes_on() -> None:
    class Odd(BaseException):
        pass

    def fail() -> None:
        raise Odd("no")

    with pytest.raises(Odd, match="no"):
        compute.run(fail)
    assert compute.run(lambda: 3) == 3


def test_a_piece_may_ask_again() -> None:
    assert compute.run(lambda: compute.run(lambda: compute.run(lambda: 7))) == 7


def test_nothing_of_a_piece_is_kept() -> None:
    class Large:
        pass

    def fail(large: Large) -> None:
        raise ValueError("no")

    def ask() -> weakref.ref[Large]:
        large = Large()
        assert compute.run(lambda: id(large)) == id(large)
        with pytest.raises(ValueError, match="no"):
            compute.run(lambda: fail(large))
        return weakref.ref(large)

    gc.disable()
    try:
        kept = ask()
        compute.run(lambda: None)  # the thread holds the last piece until it gets the next
        assert kept() is None
    finally:
        gc.enable()
