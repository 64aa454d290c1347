"""A finished run is sampled and trained again from its record, and every bit is looked at."""

import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

import treadle
from treadle.algorithms.losses import Nll
from treadle.core.seeds import Stream
from treadle.pipeline.trainer import LearnerTrainer
from treadle.recipes.catalog import find
from treadle.recipes.replay import Later, Watched, replay
from treadle.trajectory.store import read_events, read_groups
from treadle.trajectory.store_schema import PLACES

FILE = str(Path(__file__).parent / "words_recipe.py")


def sampled(folder):
    """Tokens that training groups sampled."""
    groups = [group for group in read_groups(folder) if group.key.id.startswith("t0")]
    return sum(len(s) for group in groups for s in group.segments.values() if s.logprobs is not None)


def test_a_replay_trains_with_all_that_the_run_trained_with():
    parts = {name: object() for name in ("rule", "aggregation", "shared", "prm")}
    trainer = LearnerTrainer(object(), loss=Nll(), **parts)
    watched = vars(Watched(trainer, print))
    assert {name: watched[name] for name in vars(trainer)} == vars(trainer)


def test_an_asynchronous_run_replays_to_the_last_bit():
    run = treadle.train(f"{FILE}:slow", view="none")
    done = [e.values for e in read_events(run.folder, prefix="update.done")]
    assert max(e["staleness"] for e in done) == 1
    before = {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")}
    found = replay(run.folder)
    assert found.exact, found
    assert (found.updates, found.tokens, found.differing, found.first) == (4, sampled(run.folder), 0, "")
    assert {path: path.read_bytes() for path in run.folder.rglob("*.safetensors")} == before


def test_one_bit_that_is_not_as_it_was_is_found_and_named():
    run = treadle.train(FILE, overrides={"engine.deterministic": True}, view="none")
    with sqlite3.connect(run.folder / "run.db") as db:
        # Of the last update: nothing is sampled after it, so that only this token can differ.
        group, key, held = db.execute(
            f"SELECT g.id, s.key, s.logprobs FROM segments s JOIN groups g ON s.key / {PLACES} = g.number "
            "WHERE g.id LIKE 't0%' AND s.logprobs IS NOT NULL ORDER BY g.id DESC, s.key LIMIT 1"
        ).fetchone()
        db.execute("UPDATE segments SET logprobs = ? WHERE key = ?", (bytes([held[0] ^ 1]) + held[1:], key))
    db.close()
    found = replay(run.folder)
    assert not found.exact
    assert (found.differing, found.first) == (1, f"segment {group}:{key % PLACES:05d}, token 0")


def test_tokens_of_another_seed_are_not_what_a_run_sampled():
    run = treadle.train(FILE, overrides={"engine.deterministic": True}, view="none")
    other = find(FILE).changed({"engine.deterministic": True, "seed": 9})
    found = replay(run.folder, recipe=other)
    assert found.differing > 0
    assert not found.exact


def test_weights_that_are_not_those_of_the_run_are_told():
    overrides = {"engine.deterministic": True, "pipeline.save_every": 1, "pipeline.keep_checkpoints": 3}
    run = treadle.train(FILE, overrides=overrides, view="none")
    shutil.rmtree(max((run.folder / "checkpoints").iterdir()))  # what is left is the checkpoint of an earlier version
    found = replay(run.folder)
    assert found.differing == 0
    assert not found.same_weights
    assert not found.exact


def test_a_run_that_depended_on_company_is_refused():
    run = treadle.train(FILE, overrides={"coldstart": "none", "evaluation": "none"}, view="none")
    with pytest.raises(treadle.ConfigError, match=r"only runs with engine\.deterministic=true can be replayed"):
        replay(run.folder)


def test_a_run_that_is_not_done_is_refused(interrupts):
    overrides = {"engine.deterministic": True, "pipeline.updates": 4}
    run = treadle.train(FILE, overrides=overrides, view="none", listeners=[interrupts("update.done", signal.SIGINT)])
    with pytest.raises(treadle.ConfigError, match="is not done: go on with it first"):
        replay(run.folder)


def test_a_later_stream_goes_on_where_the_other_one_is():
    stream = Stream(3).at("ticket", 1)
    later = Later(seed=3, path=stream.path, first=7)
    assert later.uniforms(2, 5).tolist() == stream.uniforms(9, 5).tolist()
