"""Evaluations beside training, as every reader shows them."""

import io

import pytest
from rich.console import Console

from treadle.core.events import Event
from treadle.observability import LiveView, PlainLines, Report

SHARES = {2: 10, 4: 30, 6: 20}
"""Update to the tasks solved of 50."""


@pytest.fixture
def events():
    """Six updates, an evaluation after every second one; that after update 4 is the best."""
    told = []

    def tell(name, **values):
        told.append(Event(name=name, at=1000.0 + len(told), values=values))

    tell("run.started", run="shell-1", updates=7, group_size=8, groups_per_update=8, lag=1, seed=3, model="m")
    tell("stage.started", stage="rl", label="rl", total=7)
    for update in range(1, 7):
        tell("update.done", update=update, updates=7, version=update, solved_share=update / 10, eta_s=60.0)
        if update in SHARES:
            solved, label = SHARES[update], f"update-{update}"
            tell("stage.started", stage="evaluation", label=label, total=50)
            tell("evaluation.progress", label=label, done=25, total=50, solved=solved // 2)
            tell(
                "evaluation.done", label=label, version=update, update=update, solved=solved, total=50, unscored=0,
                solved_share=solved / 50, low_share=solved / 50 - 0.1, high_share=solved / 50 + 0.15, temperature=1.0,
            )
            tell("stage.done", stage="evaluation", label=label, seconds_s=3.0)
            if update < 6:
                tell("checkpoint.best", label=label, update=update, version=update, solved=solved, total=50,
                     solved_share=solved / 50, path=f"checkpoints/version-00000{update}")  # fmt: skip
    return told


def test_lines_say_what_an_evaluation_found_and_which_checkpoint_stays(events):
    said = []
    lines = PlainLines(said.append)
    for event in events:
        lines.emit(event)
    assert "evaluating update-2: 50 tasks" in said
    assert "update-4   solved 0.600  (30/50, 95 % 0.500 to 0.750)" in said
    assert [line for line in said if "best" in line] == [
        "version 2 is the best so far (update-2, 10/50 solved): its checkpoint stays",
        "version 4 is the best so far (update-4, 30/50 solved): its checkpoint stays",
    ]


def shown(events):
    """The live view after these events, as text."""
    paper = Console(file=io.StringIO(), width=160)
    with LiveView(Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)) as view:
        for event in events:
            view.emit(event)
        paper.print(view._draw())
    return paper.file.getvalue()


def upto(events, name, label):
    """The events up to this one."""
    found = [at for at, e in enumerate(events) if e.name == name and e.values.get("label") == label]
    return events[: found[0] + 1]


def test_the_view_comes_back_to_training_when_an_evaluation_beside_it_is_done(events):
    during = shown(upto(events, "evaluation.progress", "update-4"))
    assert "evaluating update-4" in during
    assert "25/50" in during
    after = shown(upto(events, "stage.done", "update-4"))
    assert "reinforcement learning" in after
    assert "4/7" in after
    assert "left 1 min 00 s" in after
    assert "evaluating" not in after


def test_the_view_marks_the_best_of_the_evaluations(events):
    marked = [line for line in shown(events).splitlines() if "best so far" in line]
    assert len(marked) == 1
    assert marked[0].startswith("update-4   solved 0.600  (30/50, 95 % 0.500 to 0.750)")


def test_the_view_shows_the_last_evaluations_and_the_best():
    events = [
        Event(name="evaluation.done", at=0.0, values={"label": f"update-{i}", "solved": 1, "total": 2})
        for i in range(1, 21)
    ]
    events.append(Event(name="checkpoint.best", at=0.0, values={"label": "update-3"}))
    labels = [line.split()[0] for line in shown(events).splitlines() if line.startswith("update-")]
    assert labels == ["update-3", *(f"update-{i}" for i in range(13, 21))]


def test_the_report_has_a_row_for_each_evaluation_and_names_the_best(events, tmp_path):
    report = Report()
    for event in events:
        report.emit(event)
    text = report.write(tmp_path).read_text("utf-8")
    for label, share in (("update-2", "10/50 | 0.200"), ("update-4", "30/50 | 0.600"), ("update-6", "20/50 | 0.400")):
        assert f"| {label} | {share} |" in text
    assert "Best: version 4 at update 4 (`update-4`, 30/50); its checkpoint is kept." in text
    assert report.summary() == ["best       solved 0.600  (30/50, 95 % 0.500 to 0.750), update-4"]


def test_the_learning_curve_has_a_point_with_its_interval_for_each_evaluation(events):
    report = Report()
    for event in events:
        report.emit(event)
    (axes,) = report._figure([(1.0, 0.1), (2.0, 0.2)]).axes
    (bars,) = axes.containers
    points, _, (intervals,) = bars
    assert list(points.get_xdata()) == [2, 4, 6]
    assert list(points.get_ydata()) == [0.2, 0.6, 0.4]
    ends = [[round(float(y), 6) for y in segment[:, 1]] for segment in intervals.get_segments()]
    assert ends == [[0.1, 0.35], [0.5, 0.75], [0.3, 0.55]]
    ring = [line for line in axes.lines if line.get_label().startswith("best")]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in ring] == [([4], [0.6])]
