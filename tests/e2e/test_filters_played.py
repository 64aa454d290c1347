"""Whole runs from the command line under each filter, the horizon and dynamic sampling: the run ends, and what it says
that it left out, and why, is what one counts oneself in what is stored."""

import json
from collections import Counter
from pathlib import Path

import pytest

from treadle.cli.main import main
from treadle.trajectory.store import read_groups

RECIPE = Path(__file__).parent / "filters_recipe.py"


class Played:
    """A finished run."""

    def __init__(self, folder, printed):
        self.folder = folder
        self.printed = printed
        self.report = (folder / "report.md").read_text()
        self.events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        self.groups = [group for group in read_groups(folder / "run.db", split="train") if group.rollouts]

    def told(self, *names):
        return [event for event in self.events if event["name"] in names]

    @property
    def updates(self):
        return self.told("update.done", "update.skipped")

    def counted(self, prefix):
        """What the updates counted under a prefix, by the rest of the key."""
        sums = Counter()
        for update in self.updates:
            sums.update({k.removeprefix(prefix): v for k, v in update.items() if k.startswith(prefix)})
        return dict(sums)

    def ends(self):
        """How training rollouts ended, by group."""
        found = {}
        for end in self.told("rollout.done"):
            if end["split"] == "train":
                found.setdefault(end["group"], []).append(end)
        return found

    def says_as_much(self):
        """Events, report and lines agree on why groups were dropped, and every ticket closed once."""
        dropped = Counter(event["reason"] for event in self.told("group.dropped"))
        assert self.counted("dropped.") == dict(dropped)
        for reason, count in dropped.items():
            assert f"| groups dropped: {reason} | {count} |" in self.report
        for reason, count in self.counted("masked.").items():
            assert f"| rollouts left out of training: {reason} | {count} |" in self.report
            assert f"rollouts left out: {reason} " in self.printed
        closed = [event["ticket"] for event in self.told("group.trained", "group.dropped")]
        assert len(closed) == len(set(closed)) == len(self.told("group.admitted"))
        assert self.told("run.done")[0]["reason"] == "done"
        assert len(self.updates) == 2


@pytest.fixture
def play(tmp_path, monkeypatch, capsys, tmp_path_factory):
    """Trains with these keys set on the command line."""

    def run(**keys):
        monkeypatch.setenv("TREADLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        monkeypatch.chdir(tmp_path)
        settings = [word for key, value in keys.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        assert main(["train", f"{RECIPE}:recipe", "--view", "lines", *settings]) == 0
        (folder,) = (tmp_path / "runs").iterdir()
        made = Played(folder, capsys.readouterr().out)
        made.says_as_much()
        return made

    return run


def left(run, reason, leaves_out):
    """Check what a masking filter left out: which rollouts, of what groups, and that the others trained."""
    ends = run.ends()
    out = {id: sum(map(leaves_out, members)) for id, members in ends.items()}
    assert run.counted("masked.") == {reason: sum(out.values())}
    kept = {id: len(ends[id]) - count for id, count in out.items()}
    dropped = {event["group"]: event["reason"] for event in run.told("group.dropped")}
    assert dropped == {id: reason for id, count in kept.items() if count < 2}
    trained = {event["group"] for event in run.told("group.trained")}
    assert trained == set(ends) - set(dropped)
    tokens = sum(end["tokens"] for id in trained for end in ends[id] if not leaves_out(end))
    assert sum(update["tokens_trained"] for update in run.told("update.done")) == tokens > 0
    return sum(out.values()), len(dropped)


def test_overlong_rollouts_are_left_out_and_counted(play):
    run = play(pipeline__filters="overlong")
    out, _ = left(run, "overlong", lambda end: end["status"] == "truncated")
    assert out > 0


def test_rollouts_with_a_void_turn_are_left_out_and_counted(play):
    run = play(
        pipeline__filters="void_turn", pipeline__group_size=8, **{"pipeline.filters.void_turn.parts": "code"}
    )
    out, _ = left(run, "void_turn", lambda end: end["type"] == "tokens" or end["turns"] > 1)
    assert out > 0


def test_duplicates_are_left_out_and_counted(play):
    run = play(
        pipeline__filters="duplicate", pipeline__group_size=6, limits__max_tokens_per_turn=1, limits__temperature=0.15,
        learner__temperature=0.15,
    )
    said = {
        rollout.id: (group.key.id, tuple(bytes(turn.ids) for turn in group.actions(rollout.id)))
        for group in run.groups for rollout in group.rollouts.values()
    }
    seen = set()
    again = {id for id, words in said.items() if words in seen or seen.add(words)}
    out, dropped = left(run, "duplicate", lambda end: end["rollout"] in again)
    assert out > dropped  # nothing is left of a group whose members are all the same


def test_groups_with_nothing_to_compare_are_dropped_and_counted(play):
    run = play(pipeline__filters="zero_variance")
    flat = {id for id, members in run.ends().items() if len({end["reward"] for end in members}) == 1}
    dropped = {event["group"]: event["reason"] for event in run.told("group.dropped")}
    assert dropped == dict.fromkeys(flat, "zero_variance")
    assert {end["family"] for id in flat for end in run.ends()[id]} >= {"flat"}
    assert run.counted("masked.") == {}


def test_turns_grow_with_the_horizon_and_evaluations_have_the_whole_limit(play):
    run = play(pipeline__filters="", **{"pipeline.horizon.first": 1, "pipeline.horizon.updates": 1})
    most = {}
    for event, update in [(event, event["ticket"] // 3) for event in run.told("group.admitted")]:
        most[update] = max([most.get(update, 0), *(end["turns"] for end in run.ends()[event["group"]])])
    assert most == {0: 1, 1: 3}
    cut = [end for members in run.ends().values() for end in members if end["type"] == "turns"]
    assert cut
    assert {end["status"] for end in cut} == {"truncated"}
    assert all(end["reward"] is not None for end in cut)
    assert run.told("group.dropped") == []


def test_dynamic_sampling_replaces_what_was_dropped(play):
    run = play(pipeline__schedule="dynamic", pipeline__filters="zero_variance")
    batches = [(e["tickets"].split(","), e["trains"].split(",")) for e in run.told("batch.taken")]
    assert [len(trains) for _, trains in batches] == [3, 3]
    assert [update["groups"] for update in run.told("update.done")] == [3, 3]
    taken = [ticket for tickets, _ in batches for ticket in tickets]
    assert len(taken) > 6
    assert len(taken) - 6 == run.counted("dropped.")["zero_variance"]


def test_all_of_it_at_once_runs_to_its_end(play):
    run = play(
        pipeline__filters="overlong,void_turn,duplicate,zero_variance", pipeline__schedule="dynamic", pipeline__lag=1,
        **{"pipeline.filters.void_turn.parts": "text", "pipeline.horizon.first": 2, "pipeline.horizon.updates": 2},
    )
    assert set(run.counted("masked.")) <= {"overlong", "void_turn", "duplicate"}
    assert run.counted("masked.")["overlong"] > 0
    assert all(update["staleness"] <= 1 for update in run.told("update.done"))
