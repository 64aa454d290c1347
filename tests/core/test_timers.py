"""Timers that hardly ever go off: each on its time, none that was taken back, one timer of the loop for all."""

import asyncio

import pytest

from treadle.core.timers import after
from treadle.testing import VirtualClock


@pytest.fixture
def rung():
    """What rang, and when."""
    return []


def ring(rung, name):
    return lambda: rung.append((name, asyncio.get_running_loop().time()))


def test_each_rings_on_its_time_whatever_the_order_they_were_set_in(rung):
    async def main():
        for name, seconds in (("late", 5.0), ("soon", 1.0), ("middle", 3.0)):
            after(seconds, ring(rung, name))
        await asyncio.sleep(10)

    VirtualClock().run(main())
    assert rung == [("soon", 1.0), ("middle", 3.0), ("late", 5.0)]


def test_what_was_taken_back_does_not_ring_and_holds_nobody_up(rung):
    async def main():
        first = after(1.0, ring(rung, "taken back"))
        after(2.0, ring(rung, "kept"))
        first.cancel()
        first.cancel()
        await asyncio.sleep(10)

    VirtualClock().run(main())
    assert rung == [("kept", 2.0)]


def test_one_that_rings_can_take_back_another_that_is_due(rung):
    async def main():
        timers = []
        timers.append(after(1.0, lambda: timers[1].cancel()))
        timers.append(after(1.0, ring(rung, "taken back")))
        await asyncio.sleep(2)

    VirtualClock().run(main())
    assert rung == []


def test_one_that_rings_can_set_another(rung):
    async def main():
        after(1.0, lambda: after(1.0, ring(rung, "second")))
        await asyncio.sleep(5)

    VirtualClock().run(main())
    assert rung == [("second", 2.0)]


def test_a_thousand_that_are_taken_back_take_one_timer_of_the_loop():
    class Counting(asyncio.SelectorEventLoop):
        asked = 0

        def call_at(self, *args, **options):
            Counting.asked += 1
            return super().call_at(*args, **options)

    async def main():
        first = after(30.0, lambda: None)
        for _ in range(1000):
            after(30.0, lambda: None).cancel()
        first.cancel()

    with asyncio.Runner(loop_factory=Counting) as runner:
        runner.run(main())
    assert Counting.asked == 1


def test_when_none_waits_the_loop_has_no_timer_left():
    async def main():
        timer = after(30.0, lambda: None)
        timer.cancel()
        await asyncio.get_running_loop().create_future()  # nothing can come: the virtual loop says so

    with pytest.raises(RuntimeError):
        VirtualClock().run(main())


def test_loops_after_each_other_have_timers_of_their_own(rung):
    async def main():
        after(1.0, ring(rung, "one"))
        await asyncio.sleep(2)

    VirtualClock().run(main())
    VirtualClock().run(main())
    assert rung == [("one", 1.0)] * 2
