"""kill -9 of a real pipeline in a child process, at a handful of points; the verdict is a journal outside of it."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.kill_resume import Chain, child, killed_run  # noqa: E402

UPDATES = 6
KILLS = {
    "events": ("event:37", "event:21", "event:4"),
    "inside": ("update:2", "publish:1", "checkpoint:1", "update:1"),
}

ONCE = (
    ("group.admitted", "ticket"), ("group.trained", "ticket"), ("rollout.done", "rollout"), ("batch.taken", "update"),
    ("update.done", "update"), ("update.skipped", "update"), ("weights.published", "update"),
)


def told(folder: Path, name: str, key: str) -> Counter[object]:
    with sqlite3.connect(folder / "run.db") as db:
        rows = db.execute("SELECT json_extract(facts, ?) FROM events WHERE name = ?", (f"$.{key}", name)).fetchall()
    return Counter(row[0] for row in rows)


@pytest.fixture(scope="module", params=[0, 1], ids=["lag0", "lag1"])
def undisturbed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    options = ("--lag", str(request.param), "--updates", str(UPDATES))
    return options, folder, killed_run(folder, "run", (), *options)[0]


@pytest.mark.parametrize("kind", KILLS)
def test_a_killed_run_trains_what_an_undisturbed_one_trains(tmp_path, undisturbed, kind):
    options, reference, meant = undisturbed
    found, done = killed_run(tmp_path, "run", KILLS[kind], *options)
    assert done == list(KILLS[kind])
    assert found.groups == meant.groups
    assert found.digest == meant.digest
    for name, key in ONCE:
        assert told(tmp_path / "run", name, key) == told(reference / "run", name, key)


def test_a_run_that_looks_ahead_loses_nothing_and_trains_nothing_twice(tmp_path):
    options = ("--lag", "1", "--slack", "1", "--updates", str(UPDATES))
    meant, _ = killed_run(tmp_path, "undisturbed", (), *options)
    kills = ("event:90", "update:2", "event:21")
    found, done = killed_run(tmp_path, "run", kills, *options)
    assert done == list(kills)
    assert sorted(found.groups) == sorted(meant.groups)
    for name, key in ONCE[:3]:
        assert told(tmp_path / "run", name, key) == told(tmp_path / "undisturbed", name, key)


def test_what_was_stored_is_trained_again_without_being_played_again(tmp_path, undisturbed):
    options, _, meant = undisturbed
    found, done = killed_run(tmp_path, "run", ("update:3",), *options)
    assert done == ["update:3"]
    assert told(tmp_path / "run", "replayed.group.trained", "ticket")
    assert 0 <= found.scored - meant.scored <= 2 * 3 * 4  # at most what was outstanding


def test_a_corrupt_checkpoint_is_passed_over_in_one_line(tmp_path, undisturbed):
    options, _, meant = undisturbed
    run, journal = tmp_path / "run", tmp_path / "run.jsonl"
    assert child("killable", str(run), str(journal), *options) == 0
    held = sorted((run / "checkpoints").iterdir())
    (held[-1] / "weights.json").write_text("[")
    assert child("killable", str(run), str(journal), *options) == 0
    assert Chain.of(journal).digest == meant.digest
    (line,) = [line for line in journal.read_text().splitlines() if '"said"' in line]
    assert held[-1].name in line
    assert "going back to the one before" in line
