"""The live view on a console that keeps what is drawn."""

import io

import pytest
from rich.console import Console

from treadle.core.events import Event
from treadle.observability import LiveView
from treadle.observability.live import spark


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)


def drawn(view):
    """The view as it stands now."""
    paper = Console(file=io.StringIO(), width=160)
    paper.print(view._draw())
    return paper.file.getvalue()


def until(told, name, count=1):
    """The events up to the `count`-th of this name."""
    seen = 0
    for at, event in enumerate(told.events):
        seen += event.name == name
        if seen == count:
            return told.events[: at + 1]
    raise AssertionError(f"{name} is told {seen} times")


def test_the_view_shows_progress_time_left_and_every_figure(told, console):
    with LiveView(console) as view:
        for event in until(told, "update.done", 2):
            view.emit(event)
        screen = drawn(view)
    for word in ("reinforcement learning", "3/3", "left 2 min 05 s", "reward", "0.75", "solved", "75%", "tok/s", "321",
                 "staleness", "1", "loss", "0.0125", "idle: generate", "25%", "env", "50%", "score", "90%", "update",
                 "60%", "untouched", "coldstart", "solved per update"):  # fmt: skip
        assert word in screen
    assert "▃▅▇ 75%" in screen


def test_time_left_of_an_evaluation_follows_its_own_pace(console):
    with LiveView(console) as view:
        view.emit(Event(name="stage.started", at=0.0, values={"stage": "evaluation", "label": "final", "total": 40}))
        view.emit(Event(name="evaluation.progress", at=30.0, values={"done": 10, "total": 40}))
        screen = drawn(view)
    assert "evaluating final" in screen
    assert "10/40" in screen
    assert "left 1 min 30 s" in screen


def test_failures_and_checkpoints_scroll_above_the_view_and_stay(told, console):
    with LiveView(console) as view:
        told.to(view)
    text = console.file.getvalue()
    assert r"rollout t000001.0.0 failed (env, RuntimeError): this world is broken \x1b[31m" in text
    assert "saved version 3 to runs/shell-1/checkpoints/version-000003" in text
    assert "done after 2 min 05 s" in text


def test_strange_events_are_taken(strange, console):
    with LiveView(console) as view:
        for event in strange.events:
            view.emit(event)
            drawn(view)
    assert view.console is console


def test_a_terminal_that_went_away_does_not_hurt_at_the_end(console):
    with LiveView(console) as view:
        view.emit(Event(name="evaluation.done", at=0.0, values={"label": "final"}))
        view._live.auto_refresh = False
        console.file.close()
    assert console.file.closed


def test_a_curve_has_a_block_for_every_share():
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([-3.0, 9.0]) == "▁█"


def test_a_terminal_whose_reader_went_away_is_silent_and_the_run_goes_on(told, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sys.stdout", Gone())
    with LiveView() as view:
        told.to(view)
    assert view.console.quiet
