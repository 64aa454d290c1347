"""`treadle credit`: a real run judged by rules that it was not trained with, and bad input in one line."""

import json

import pytest

from treadle.core.clock import SystemClock
from treadle.core.outcome import CANCELLED
from treadle.testing.forests import Node, grow, observation
from treadle.trajectory.segment import Author
from treadle.trajectory.store import TrajectoryStore


@pytest.fixture
def run(treadle, words_file, tmp_path):
    """A short run of the tiny model."""
    assert treadle("train", words_file, "--set", "coldstart=none", "--set", "evaluation=none").code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def test_a_stored_run_is_judged_by_other_rules(treadle, run):
    before = (run / "run.db").stat().st_mtime_ns
    told = json.loads(treadle("credit", run, "--rules", "grpo,tree_pg,dr_grpo", "--json").out)
    assert (told["batches"], told["groups"]) == (2, 4)
    assert {rule: one["judged"] for rule, one in told["rules"].items()} == {"grpo": 4, "tree_pg": 4, "dr_grpo": 4}
    assert all(one["signal_by_turn"]["0"] == 1.0 for one in told["rules"].values())
    assert len(told["agreement"]) == 3
    assert (run / "run.db").stat().st_mtime_ns == before

    said = treadle("credit", run, "--rules", "grpo,tree_pg", "--update", "1")
    assert said.code == 0
    assert said.out.startswith("group t00000")
    assert "1 batches, 2 groups" in said.out
    assert "grpo ~ tree_pg" in said.out


def test_bad_input_is_one_line_and_exit_2(treadle, run, tmp_path):
    for argv, words in (
        ((tmp_path / "none",), "there is no such folder"),
        ((tmp_path,), "without run.db"),
        ((run, "--rules", "grop"), "unknown rule 'grop'; did you mean 'grpo'?"),
        ((run, "--group", "t9"), "no group 't9'"),
        ((run, "--update", "7"), "--update: got 7"),
    ):
        said = treadle("credit", *argv)
        assert said.code == 2
        assert words in said.line


def test_a_run_without_a_valid_rollout_is_refused(treadle, tmp_path):
    with TrajectoryStore(tmp_path / "run.db", clock=SystemClock()) as store:
        grow(observation("p", 2, Node(name="a", author=Author.POLICY, ids=(3,), end=CANCELLED)), sink=store)
    said = treadle("credit", tmp_path)
    assert said.code == 2
    assert "got 1 groups without a valid rollout" in said.line
