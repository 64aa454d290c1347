"""`treadle show RUN GROUP` draws the tree of a group."""

from __future__ import annotations

import numpy as np

from treadle.cli.paper import tree_lines
from treadle.core.outcome import OK
from treadle.core.ports import Completion, Finish
from treadle.trajectory.group import Group, GroupKey


def sampled(n):
    return Completion(
        ids=np.arange(n, dtype=np.int32), logprobs=np.full(n, -1.0, np.float32), entropy=np.zeros(n, np.float32),
        versions=((0, n),), kv_version=0, finish=Finish.STOP,
    )


def test_forks_stand_below_what_they_were_forked_from():
    group = Group(GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0))
    first = group.begin(0).id
    prompt = group.prompt(np.array([1], np.int32))
    at = group.observed(
        first, np.array([2], np.int32), after=group.sampled(first, sampled(3), after=prompt, turn=0), turn=0
    )
    forks = [group.fork(first, 1, at=at).id, group.fork(first, 2, at=prompt, probe=True).id]
    for rollout, after, turn in ((first, at, 1), (forks[0], at, 1), (forks[1], prompt, 0)):
        group.sampled(rollout, sampled(2), after=after, turn=turn)
        group.pay(rollout, "score", 1.0)
        group.end(rollout, OK)
    head, *lines = tree_lines(group)
    assert head == "group g  task t  family -  split train  2 rollouts, 1 probes"
    assert lines == [
        "g.0.0  turns 0-1, 5 tokens  ended ok (-), reward 1",
        "   before turn 0  g.2.0  probe  turns 0-0, 2 tokens  ended ok (-), reward 1",
        "   before turn 1  g.1.0  turns 1-1, 2 tokens  ended ok (-), reward 1",
    ]
