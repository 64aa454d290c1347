"""The report: what came out of a run, from what was told about it."""

import struct

from treadle.core.events import Event
from treadle.observability import Report


def written(report, folder):
    return report.write(folder).read_text("utf-8")


def test_the_report_compares_the_three_evaluations(told, tmp_path):
    report = Report()
    told.to(report)
    text = written(report, tmp_path)
    assert "| untouched | 1/50 | 0.020 | 0.000 to 0.120 | easy 1/20 |" in text
    assert "| coldstart | 15/50 | 0.300 | 0.200 to 0.400 | easy 15/20 |" in text
    assert "| final | 40/50 | 0.800 | 0.700 to 0.900 | easy 20/20 |" in text
    assert "| count | 1/50 | 15/50 | 40/50 |" in text
    assert report.summary() == [
        "untouched  solved 0.020  (1/50, 95 % 0.000 to 0.120)",
        "cold start solved 0.300  (15/50, 95 % 0.200 to 0.400)",
        "after RL   solved 0.800  (40/50, 95 % 0.700 to 0.900)",
    ]


def test_the_report_says_how_it_ended_and_where_rollouts_went(told, tmp_path):
    report = Report()
    told.to(report)
    text = written(report, tmp_path)
    assert "Run `shell-1`, recipe `shell`, model `smollm2-135m`, seed 3, lag 1, staleness bound 1." in text
    assert "Ended: done after 2 min 05 s, peak memory 2.3 GB. evaluation: 9 s. coldstart: 2 s. rl: 25 s." in text
    assert "| rollouts that ended error, env | 1 |" in text
    assert "| rollouts that ended ok, - | 2 |" in text
    assert "| groups dropped: zero_variance | 1 |" in text


def test_the_report_has_a_row_for_every_update_with_idle_shares(told, tmp_path):
    report = Report()
    told.to(report)
    text = written(report, tmp_path)
    assert "| 3 | 0.750 | 0.75 | 0.0125 | 0.50 | 1 | 2000 | 321 | 0.25 | 0.50 | 0.90 | 0.60 | 8.2 |" in text
    assert "| 2 | 0.500 | 0.50 | - | - | - | - | - | - | - | - | - | - |" in text
    assert "`-`: the batch was empty" in text


def test_the_learning_curve_is_a_picture(told, tmp_path):
    report = Report()
    told.to(report)
    assert "![Solved share per update](learning-curve.png)" in written(report, tmp_path)
    head = (tmp_path / "learning-curve.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 400
    assert height > 200


def test_a_run_whose_groups_were_all_dropped_says_so(tmp_path):
    report = Report()
    report.emit(Event(name="run.started", at=0.0, values={"run": "x"}))
    for update in (1, 2):
        report.emit(Event(name="group.dropped", at=1.0, values={"reason": "zero_variance"}))
        report.emit(Event(name="update.skipped", at=1.0, values={"update": update, "solved_share": 0.0}))
    text = written(report, tmp_path)
    assert "Reinforcement learning changed nothing: all 2 batches were empty" in text
    assert "| groups dropped: zero_variance | 2 |" in text
    assert (tmp_path / "learning-curve.png").is_file()


def test_a_run_without_reinforcement_learning_has_no_curve(tmp_path):
    report = Report()
    report.emit(Event(name="run.started", at=0.0, values={"run": "x"}))
    report.emit(Event(name="run.failed", at=1.0, values={"type": "EnvError", "message": "broken", "seconds_s": 1}))
    text = written(report, tmp_path)
    assert "Ended: EnvError: broken after 1 s" in text
    assert "curve" not in text
    assert not (tmp_path / "learning-curve.png").exists()


def test_strange_events_are_reported_and_stay_in_their_cells(strange, tmp_path):
    report = Report()
    strange.to(report)
    text = written(report, tmp_path)
    assert "\x1b" not in text
    assert r"\|" in text


def test_a_report_has_started_when_the_run_has():
    report = Report()
    assert not report.started
    report.emit(Event(name="run.started", at=0.0, values={}))
    assert report.started


def test_the_report_lists_what_the_watchdog_did_and_counts_the_rest(told, tmp_path):
    report = Report()
    told.to(report)
    first = "- update 3 waited for group t000011 for 25 min 03 s: it goes on with what there is"
    assert first in written(report, tmp_path)
    for number in range(25):
        values = {"wait": f"rollout r{number}", "for": "the engine", "since_s": 1200.0, "action": "cancel"}
        report.emit(Event(name="watchdog.acted", at=0.0, values=values))
    text = written(report, tmp_path)
    assert "- rollout r18 waited for the engine for 20 min 00 s: it was cancelled" in text
    assert "rollout r19" not in text
    assert "- and 6 more" in text


def test_a_report_of_a_run_that_needed_nothing_says_nothing_of_the_watchdog(tmp_path):
    report = Report()
    report.emit(Event(name="run.started", at=0.0, values={"run": "x"}))
    assert "watchdog" not in written(report, tmp_path)
