"""When rollouts that are away will be back, as far as ended absences tell."""

from __future__ import annotations

import pytest

from treadle.inference.absence import ENOUGH, NEVER, Absences
from treadle.testing import VirtualClock


class World:
    """Rollouts that come and go, on a clock that moves only here."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = VirtualClock()
        self.absences = Absences(self.clock)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance_to(self.now)

    def away(self, rollout: str, *, group: str = "") -> None:
        self.absences.ask(rollout, group)
        self.absences.leave(rollout, group)

    def was_away(self, seconds: float, *, group: str = "", times: int = 1) -> None:
        for _ in range(times):
            self.away("past", group=group)
            self.wait(seconds)
            self.absences.ask("past", group)
        self.absences._seen.clear()

    def until(self, *rollouts: str, group: str = "") -> float:
        return self.absences.until(rollouts, (group,) if group else ())


def test_while_nothing_is_known_everybody_is_expected_at_once() -> None:
    world = World()
    world.away("a")
    world.wait(100)
    assert world.until("a") == 0


def test_who_is_here_is_needed_now() -> None:
    world = World()
    world.was_away(5)
    world.absences.ask("a", "")
    assert world.until("a") == 0


def test_nobody_is_never_expected() -> None:
    assert World().until() == NEVER


def test_where_all_absences_last_alike_who_left_first_is_back_first() -> None:
    world = World()
    world.was_away(10, times=3)
    world.away("first")
    world.wait(4)
    world.away("second")
    assert (world.until("first"), world.until("second")) == (pytest.approx(6), pytest.approx(10))


def test_who_is_away_longer_than_fast_tools_take_waits_for_a_slow_one() -> None:
    world = World()
    world.was_away(1, times=9)
    world.was_away(61)
    world.away("slow")
    assert world.until("slow") == pytest.approx(7)  # a tenth of them takes 61 s
    world.wait(2)
    world.away("fast")
    assert (world.until("slow"), world.until("fast")) == (pytest.approx(59), pytest.approx(7))


def test_who_is_away_longer_than_anybody_was_is_not_expected() -> None:
    world = World()
    world.was_away(3, times=3)
    world.away("a")
    world.wait(4)
    assert world.until("a") == NEVER


def test_a_groups_own_absences_say_more_than_all() -> None:
    world = World()
    world.was_away(1, group="quick", times=50)
    world.was_away(30, group="slow", times=ENOUGH)
    world.away("a", group="slow")
    world.away("b", group="quick")
    assert (world.until("a"), world.until("b")) == (pytest.approx(30), pytest.approx(1))


def test_a_groups_prompt_is_needed_when_the_first_of_its_rollouts_is() -> None:
    world = World()
    world.was_away(10, times=3)
    world.away("a", group="g")
    world.wait(3)
    world.away("b", group="g")
    assert world.until(group="g") == pytest.approx(7)
    assert world.until(group="other") == NEVER


def test_what_is_over_is_forgotten() -> None:
    world = World()
    world.was_away(10)
    world.away("a", group="g")
    world.absences.forget("a")
    world.absences.leave("a", "g")  # its request ends after its release
    assert world.until("a", group="g") == NEVER
