"""Numbers out of loose values, and how they are said."""

import pytest

from treadle.core.events import Event
from treadle.observability.facts import amount, duration, number, printable, taped, text, whole
from treadle.observability.shield import Shield


def event(**values):
    return Event(name="x", at=0.0, values=values)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"), (float("nan"), "-"), (float("inf"), "-"), (0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"),
        (125, "2 min 05 s"), (3600, "1 h 00 min"), (7845, "2 h 10 min"),
    ],
)  # fmt: skip
def test_durations_are_said_to_a_person(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "as_number", "as_whole"),
    [(3, 3.0, 3), (2.7, 2.7, 2), ("3", None, 0), (True, None, 0), (None, None, 0), (float("inf"), float("inf"), 0)],
)
def test_only_numbers_are_numbers(value, as_number, as_whole):
    assert number(event(k=value), "k") == as_number
    assert whole(event(k=value), "k") == as_whole


def test_what_is_missing_is_none_nothing_or_a_dash():
    assert (number(event(), "k"), whole(event(), "k"), text(event(), "k"), amount(None)) == (None, 0, "", "-")


def test_a_cassette_is_summed_up_over_all_sittings_of_a_run():
    first = {"cassette.recorded": 7, "cassette.differing": 0, "cassette.replayed": 0, "cassette.missed": 0}
    second = {"cassette.recorded": 2, "cassette.differing": 1, "cassette.replayed": 5, "cassette.missed": 2}
    ends = [Event(name="run.done", at=0.0, values=values) for values in (first, {"reason": "killed"}, second)]
    assert taped(ends) == "cassette: 9 answers recorded, 1 unlike the first to the same history, 5 replayed, 2 missed"
    assert taped(ends[:1]) == "cassette: 7 answers recorded, 0 replayed, 0 missed"
    assert taped(ends[1:2]) == ""


def test_control_characters_are_made_visible():
    assert printable("a\x1b[31m\u202e\ue000\x07\nb\tc é") == "a\\x1b[31m\\x202e\\xe000\\x07\nb\tc é"


class Raises:
    def __init__(self):
        self.heard = 0

    def emit(self, event):
        self.heard += 1
        raise BrokenPipeError("gone")


def test_a_listener_that_raised_is_told_nothing_more(capsys):
    listener = Raises()
    shield = Shield(listener)
    for _ in range(3):
        shield.emit(event())
    assert listener.heard == 1
    assert isinstance(shield.broken, BrokenPipeError)
    assert capsys.readouterr().err == (
        "treadle: Raises is told nothing more, because it failed at x: BrokenPipeError: gone\n"
    )


def test_a_closed_standard_error_does_not_hurt(monkeypatch, tmp_path):
    closed = (tmp_path / "err").open("w")
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    shield = Shield(Raises())
    shield.emit(event())
    assert shield.broken is not None
