"""How a rollout is printed: who wrote what, what was paid, how it ended; nothing that drives the terminal."""

import numpy as np

from treadle import Group
from treadle.cli.paper import rollout_lines
from treadle.core.outcome import OK, Origin, failure, limit
from treadle.core.ports import Completion, Finish
from treadle.trajectory.group import GroupKey


def decode(ids):
    return bytes(int(i) % 256 for i in ids).decode("latin-1")


def ids(text):
    return np.frombuffer(text.encode("latin-1"), np.uint8).astype(np.int32)


def sampled(text, version=3):
    n = len(text)
    return Completion(
        ids=ids(text), logprobs=np.full(n, -0.5, np.float32), entropy=np.full(n, 1.25, np.float32),
        versions=((version, n),), kv_version=version, finish=Finish.STOP,
    )


def played(outcome, *, scored=True):
    key = GroupKey(id="t000007", ticket=7, task="shell/train/7", family="count", split="train", admitted_version=3)
    group = Group(key)
    rollout = group.begin(0)
    at = group.prompt(ids("how many?"))
    at = group.sampled(rollout.id, sampled("ls\x1b[2J"), after=at, turn=0)
    at = group.observed(rollout.id, ids("a b"), after=at, turn=0)
    group.sampled(rollout.id, sampled("two"), after=at, turn=1)
    if scored:
        group.pay(rollout.id, "correct", 1.0)
    return group, group.end(rollout.id, outcome, scored=scored)


def test_a_rollout_is_printed_turn_by_turn():
    group, rollout = played(OK)
    assert rollout_lines(group, rollout, decode) == [
        "rollout t000007.0.0  task shell/train/7  family count  split train",
        "",
        "-- turn 0  context  9 tokens",
        "   how many?",
        "",
        "-- turn 0  trained  6 tokens  v3 x 6  mean log-prob -0.500",
        r"   ls\x1b[2J",
        "",
        "-- turn 0  context  3 tokens",
        "   a b",
        "",
        "-- turn 1  trained  3 tokens  v3 x 3  mean log-prob -0.500  correct=1",
        "   two",
        "",
        "ended ok (-), reward 1",
    ]


def test_every_token_has_a_row_and_sampled_ones_a_mark():
    group, rollout = played(OK)
    lines = rollout_lines(group, rollout, decode, tokens=True)
    rows = [line.split() for line in lines if line.startswith("   ") and "log-prob" not in line]
    assert len(rows) == 9 + 6 + 3 + 3
    assert rows[0] == ["104", ".", "h"]
    assert rows[9] == ["108", "-0.500", "1.250", "3", "*", "l"]
    assert rows[11] == ["27", "-0.500", "1.250", "3", "*", r"\x1b"]


def test_endings_say_who_did_it_and_whether_it_was_scored():
    group, rollout = played(limit("turns", "2 turns"))
    assert rollout_lines(group, rollout, decode)[-1] == "ended truncated (limit, turns), reward 1: 2 turns"
    group, rollout = played(failure(Origin.ENV, RuntimeError("broken \x07")), scored=False)
    assert rollout_lines(group, rollout, decode)[-1] == r"ended error (env, RuntimeError), not scored: broken \x07"


def test_a_rollout_that_was_never_ended_says_so():
    key = GroupKey(id="t000001", ticket=1, task="a", family="", split="train", admitted_version=0)
    group = Group(key)
    lines = rollout_lines(group, group.begin(0), decode)
    assert lines == ["rollout t000001.0.0  task a  family -  split train", "", "not ended"]
