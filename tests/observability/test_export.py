"""Exports: strict JSON lines, whatever is told and however full the disk is."""

import json

import pytest

from treadle.core.events import Event
from treadle.observability import JsonlExport
from treadle.observability.export import PROGRESS


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


def lines(path):
    return [json.loads(line, parse_constant=no_constant) for line in path.read_text("utf-8").splitlines()]


def test_every_event_but_progress_is_a_line(told, tmp_path):
    export = JsonlExport(tmp_path)
    told.to(export)
    export.close()
    assert [e["name"] for e in lines(tmp_path / "events.jsonl")] == [
        e.name for e in told.events if e.name not in PROGRESS
    ]
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [m["name"] for m in metrics].count("update.done") == 2
    assert {m["name"] for m in metrics} == {"evaluation.done", "coldstart.update", "update.done", "update.skipped"}


def test_a_line_is_out_when_the_event_was_taken(tmp_path):
    export = JsonlExport(tmp_path)
    export.emit(Event(name="run.started", at=1.5, values={"run": "x"}))
    assert lines(tmp_path / "events.jsonl") == [{"name": "run.started", "at": 1.5, "run": "x"}]
    export.close()


def test_strange_values_are_strict_json(strange, tmp_path):
    export = JsonlExport(tmp_path)
    strange.to(export)
    export.close()
    assert len(lines(tmp_path / "events.jsonl")) > 100
    assert export.lost == 0


def test_lone_surrogates_are_written(tmp_path):
    export = JsonlExport(tmp_path)
    export.emit(Event(name="rollout.done", at=0.0, values={"message": "half \ud83d"}))
    export.close()
    assert lines(tmp_path / "events.jsonl")[0]["message"].startswith("half ")


def test_a_full_disk_loses_lines_and_raises_nothing(told, tmp_path):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    export = JsonlExport(tmp_path)
    told.to(export)
    export.close()
    assert export.lost == sum(e.name not in PROGRESS for e in told.events)
    assert lines(tmp_path / "metrics.jsonl")


def test_a_folder_that_is_not_there_raises_nothing(told, tmp_path):
    export = JsonlExport(tmp_path / "gone")
    told.to(export)
    export.close()
    assert export.lost > 0


def test_a_line_that_the_disk_took_in_part_is_taken_back(tmp_path):
    export = JsonlExport(tmp_path)
    export.emit(Event(name="a", at=0.0, values={}))
    file = export._files["events.jsonl"]
    whole = file.write

    class Short:
        def __init__(self):
            self.short = True

        def write(self, data):
            return whole(data[:5] if self.short else data)

        def __getattr__(self, name):
            return getattr(file, name)

    short = Short()
    export._files["events.jsonl"] = short
    export.emit(Event(name="b", at=1.0, values={}))
    short.short = False
    export.emit(Event(name="c", at=2.0, values={}))
    export.close()
    assert [e["name"] for e in lines(tmp_path / "events.jsonl")] == ["a", "c"]
    assert export.lost == 1


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_is_written_after_closing(tmp_path, times):
    export = JsonlExport(tmp_path)
    for _ in range(times):
        export.close()
    export.emit(Event(name="late", at=0.0, values={}))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_wrote_in_part_is_a_line_of_its_own(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"name": "run.started"}\n{"name": "upda')
    export = JsonlExport(tmp_path)
    export.emit(Event(name="run.resumed", at=0.0, values={}))
    export.close()
    first, torn, last = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in (first, last)] == ["run.started", "run.resumed"]
    assert torn == '{"name": "upda'
