"""kill -9 of a real run while it evaluates beside training: the same evaluations, the same best, counted once."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from treadle.pipeline.best import best_of
from treadle.pipeline.evaluation import Evaluation
from treadle.trajectory.store import read_events

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.kill_resume import KILLED, child  # noqa: E402

KILLS = ("evaluation.progress:8", "evaluation.done:1")
"""In the evaluation after update 2, and when the process that went on from there has done it."""


def run(runs, kills):
    """One run, killed at these points and then left alone: its folder."""
    for kill in (*kills, "never:1"):
        resume = [word for path in runs.glob("killable-*") for word in ("--resume", str(path))]
        ended = child("killable_tiny", str(runs), "--evaluate-every", "2", *resume, "--kill", kill)
        assert (ended == KILLED) is (kill != "never:1")
    (folder,) = runs.glob("killable-*")
    return folder


def told(folder, name):
    return [e.values for e in read_events(folder, prefix=name) if e.name == name]


def evaluations(folder):
    """What was found, without how long it took."""
    return [{k: v for k, v in values.items() if k != "seconds_s"} for values in told(folder, "evaluation.done")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run(tmp_path_factory.mktemp("undisturbed"), ())


def test_a_run_that_was_killed_in_its_evaluations_finds_the_same_and_keeps_the_same(tmp_path, undisturbed):
    folder = run(tmp_path, KILLS)
    found = evaluations(folder)
    assert [e["label"] for e in found] == ["untouched", "coldstart", "update-2", "update-4", "final"]
    assert found == evaluations(undisturbed)
    ended = Counter(e["rollout"] for e in told(folder, "rollout.done") if e["split"] == "heldout")
    assert len(ended) == 5 * 3
    assert set(ended.values()) == {1}
    best = best_of(Evaluation.of(e) for e in told(folder, "evaluation.done"))
    kept, meant = (sorted(p.name for p in (f / "checkpoints").glob("version-*")) for f in (folder, undisturbed))
    assert f"version-{best.version:06d}" in kept
    assert kept == meant
    weights = f"checkpoints/version-{best.version:06d}/model/model.safetensors"
    assert (folder / weights).read_bytes() == (undisturbed / weights).read_bytes()
