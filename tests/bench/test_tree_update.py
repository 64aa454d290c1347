"""The comparison of tree and flat trains the same thing on both sides, and its record has what targets look at."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench import tree_update
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.models import Policy, build_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"))


def arguments(folder: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tree_update.add(parser)
    return parser.parse_args(["--model", str(folder), "--pairs", "1", *more])


def test_the_record_has_speed_limit_and_equal_gradients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_update, "SHAPES", {"small": (32, 8, 4)})
    record = tree_update.run(arguments(folder, "--shapes", "small", "--no-memory"))
    small = record["small"]
    assert isinstance(small, dict)
    assert (small["tree_tokens"], small["flat_tokens"], small["edges"]) == (32 + 4 * 8, 4 * 40, 4 * 8)
    assert small["speedup"] == pytest.approx(small["flat_s"] / small["tree_s"])
    assert 1 < small["limit"] < 160 / 64
    assert float(str(record["grad_rel_error_fp64"])) < 1e-12
    assert float(str(record["grad_rel_error_fp32"])) < 1e-5
    assert json.loads(json.dumps(record)) == record


def test_both_ways_of_the_flat_side_have_the_same_gradient(folder: Path) -> None:
    learner = Learner(Policy.load(folder), LearnerConfig(tokens_per_pack=1 << 20, max_skew=None))
    both, found = tree_update.packs(learner, (20, 10, 4), flat_tokens=60), []
    for attention in ("node", "rows"):
        learner.policy.module.zero_grad()
        tree_update.sides(learner, both, (20, 10, 4), attention=attention)[1]()
        found.append(tree_update._gradients(learner))
    assert tree_update._relative(*found) < 1e-5


def test_the_flat_side_is_one_path_per_row_in_batches_of_whole_rows(folder: Path) -> None:
    learner = Learner(Policy.load(folder), LearnerConfig(tokens_per_pack=1 << 20, max_skew=None))
    (tree,), flats = tree_update.packs(learner, (20, 10, 4), flat_tokens=60)
    assert [batch.tokens for batch in flats] == [60, 60]
    assert [node.length for batch in flats for node in batch.nodes] == [30] * 4
    assert sum(batch.edges for batch in flats) == tree.edges == 40
    assert tree.tokens == 60


def test_the_memory_of_a_side_is_measured_above_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_update, "SHAPES", {tree_update.MEASURED: (64, 16, 8)})
    sizes = {
        side: tree_update.run(arguments(folder, "--side", side))["peak_gb"] for side in ("tree", "flat")
    }
    assert 0 < float(str(sizes["tree"])) < 1
    assert 0 < float(str(sizes["flat"])) < 1
