"""kill -9 of a run whose groups branch: what is trained in the end is what an undisturbed run trains."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.kill_resume import killed_run  # noqa: E402

from treadle.trajectory.store import read_events, read_groups  # noqa: E402

UPDATES = 3


@pytest.mark.parametrize(
    ("policy", "kills"),
    [
        ("fixed", ("event:12", "event:33", "update:1")), ("expand_finished", ("event:20", "event:9")),
        ("probe", ("event:17", "checkpoint:1")), ("entropy", ("event:25",)),
    ],
)
def test_a_killed_run_of_trees_trains_what_an_undisturbed_one_trains(tmp_path, policy, kills):
    options = ("--lag", "0", "--updates", str(UPDATES), "--branching", policy)
    meant, _ = killed_run(tmp_path, "undisturbed", (), *options)
    found, done = killed_run(tmp_path, "run", kills, *options)
    assert done == list(kills)
    assert found.groups == meant.groups
    assert found.digest == meant.digest
    trees = [tree(tmp_path / name) for name in ("undisturbed", "run")]
    assert trees[0] == trees[1]
    for name, key in (("rollout.done", "rollout"), ("group.branched", "ticket"), ("group.trained", "ticket")):
        told = [
            Counter(event.values[key] for event in read_events(tmp_path / run, prefix=name)) for run in
            ("undisturbed", "run")
        ]
        assert told[0] == told[1]
        assert set(told[0].values()) <= {1}
    sums = [
        {e.values["update"]: [v for k, v in e.values.items() if k.startswith(("branching.", "tokens_sampled"))]
         for e in read_events(tmp_path / run, prefix="update.")}
        for run in ("undisturbed", "run")
    ]
    assert sums[0] == sums[1]


def tree(run):
    """Every rollout, what it was forked from, and what it came to."""
    return sorted(
        (r.id, r.forked_from, r.probe, r.reward, r.outcome.status.value, [s.ids.tolist() for s in g.actions(r.id)])
        for g in read_groups(run) for r in g.rollouts.values()
    )
