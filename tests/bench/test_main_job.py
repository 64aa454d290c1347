"""The main job's record: what is read from finished arms."""

from pathlib import Path

import pytest
from bench.main_job import Arm, record

from bench import main_job


def evaluated(label, version, easy, *, update=0, of=10):
    return {
        "name": "evaluation.done", "label": label, "version": version, "update": update, "solved": easy, "total": of,
        "temperature": 1.0, "level.easy.solved": easy, "level.easy.total": of, "level.hard.solved": 0,
        "level.hard.total": 2, "family.a.solved": easy, "family.a.total": of,
    }


def arm(*, before, after, version, last=126, took_back=False):
    events = [
        evaluated("untouched", 0, 0), evaluated("coldstart", 72, before), evaluated("validation-0", 72, before),
        evaluated("validation-54", last, after, update=54), evaluated("final", version, after, update=54),
        {"name": "coldstart.demos", "kept": 96, "seconds_s": 1.0},
        {"name": "stage.done", "stage": "coldstart", "seconds_s": 60.0},
        {"name": "stage.done", "stage": "rl", "seconds_s": 500.0},
        {"name": "run.done", "seconds_s": 700.0, "peak_rss_gb": 4.5, "updates": 54, "version": version},
    ]
    return Arm(Path("nowhere"), events + ([{"name": "run.took_back", "version": version}] if took_back else []))


def test_seconds_are_those_of_training_and_the_course_says_which_version_it_ended_with():
    found = record([arm(before=4, after=6, version=126)], arm(before=4, after=4, version=72, took_back=True))
    assert found["median_s"]["cold_start_and_rl"] == 561.0
    assert found["gain_over_cold_start"]["rate"] == pytest.approx(0.2)
    assert found["per_seed"]["course"][0]["ends_with_version"] == 126
    assert [(k, v["solved"]) for k, v in found["placebo"]["validation"].items()] == [("0", 4), ("54", 4)]
    assert (found["placebo"]["ends_with_version"], found["placebo_within_cold_start_interval"]) == (72, True)


def test_a_placebo_that_leaves_the_interval_is_not_within_it():
    found = record([arm(before=4, after=6, version=126)], arm(before=2, after=10, version=126))
    assert found["placebo_within_cold_start_interval"] is False


def test_the_last_version_is_evaluated_only_where_another_was_taken_back(monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command[-1])
        return type("Done", (), {"stdout": '{"easy": [1, 10], "medium": [2, 10], "hard": [0, 2]}\n'})()

    monkeypatch.setattr(main_job.subprocess, "run", run)
    assert main_job._last(arm(before=4, after=6, version=126)).solved == 6
    assert asked == []
    found = main_job._last(arm(before=4, after=4, version=72, took_back=True))
    assert (found.solved, found.total, asked) == (3, 20, ["nowhere"])
