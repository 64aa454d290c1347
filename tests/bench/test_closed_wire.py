"""Questions and answers between a benchmark and the processes that it compares."""

import os
import sys

import pytest
from bench.closed_wire import ROOT, Lines, Side, SideEnded, environment

ECHO = """
from bench.closed_wire import Wire
wire = Wire()
print("noise that a library makes")
while (asked := wire.hear())["do"] != "quit":
    if asked["do"] == "end":
        raise SystemExit(3)
    if asked["do"] == "fail":
        wire.say(error="it broke")
        continue
    if asked["do"] != "nothing":
        wire.say(heard=asked)
"""


def side(limit_s=60.0):
    return Side("echo", [sys.executable, "-c", ECHO], environment=environment(PYTHONPATH=ROOT), limit_s=limit_s)


def test_a_side_answers_and_its_prints_stay_off_the_wire() -> None:
    with side() as echo:
        assert echo.ask("update", batch=8) == {"heard": {"do": "update", "batch": 8}}
        assert echo.ask("end it") == {"heard": {"do": "end it"}}


def test_a_side_that_ends_is_named_with_its_status() -> None:
    with side() as echo, pytest.raises(SideEnded, match="echo ended at 'end' with status 3"):
        echo.ask("end")


def test_a_side_that_failed_says_why() -> None:
    with side() as echo, pytest.raises(SideEnded, match="echo failed at 'fail': it broke"):
        echo.ask("fail")


def test_a_side_that_says_nothing_is_not_waited_for_beyond_the_limit() -> None:
    with side(limit_s=0.2) as echo, pytest.raises(SideEnded, match=r"did not answer 'nothing' within 0\.2 s"):
        echo.ask("nothing")


def test_lines_come_whole_however_they_are_cut() -> None:
    out, into = os.pipe()
    os.write(into, b"one\ntw")
    lines = Lines(out)
    assert lines.next(5.0) == "one"
    with pytest.raises(TimeoutError):
        lines.next(0.0)
    os.write(into, b"o\n")
    assert lines.next(5.0) == "two"
    os.close(into)
    assert lines.next(5.0) is None
    lines.close()
    os.close(out)


def test_a_sides_environment_has_no_other_python_in_it(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    made = environment(PYTHONPATH="/here")
    assert made["PYTHONPATH"] == "/here"
    assert "VIRTUAL_ENV" not in made
