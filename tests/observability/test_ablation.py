"""The offline ablation: what rules say of a stored run, and what they cannot say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from treadle.algorithms.credit import NodeCredit
from treadle.algorithms.group_baseline import Grpo, Rloo
from treadle.algorithms.tree_pg import TreePg
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError
from treadle.core.events import Event
from treadle.core.outcome import CANCELLED
from treadle.observability.ablation import Asked, ablate, asked
from treadle.observability.ablation_figures import agreements, record, signal_by_turn
from treadle.observability.ablation_lines import ablation_lines
from treadle.testing.forests import Node, action, grow, hand_tree, observation
from treadle.trajectory.segment import Author
from treadle.trajectory.store import TrajectoryStore

PLAYS = {
    "g1": observation("p", 2, action("a", 2, reward=1.0), action("b", 1), action("c", 1)),
    "g2": observation("p", 2, action("a", 2, reward=1.0), action("b", 1, reward=1.0)),
    "g3": observation("p", 2, action("a", 2, reward=1.0)),
}
"""One with something to compare, one of equals, one with a single rollout."""


@pytest.fixture
def run(tmp_path):
    """A run whose first update took the hand tree and `g1`, the second `g2` and `g3`; one more group only failed."""
    with TrajectoryStore(tmp_path / "run.db", clock=SystemClock()) as store:
        hand_tree(sink=store)
        for ticket, (id, root) in enumerate(PLAYS.items(), 1):
            grow(root, id=id, ticket=ticket, sink=store)
        lost = Node(name="a", author=Author.POLICY, ids=(3,), end=CANCELLED)
        grow(observation("p", 2, lost), id="lost", ticket=4, sink=store)
        for ticket, id in enumerate(["hand", *PLAYS, "lost"]):
            store.emit(Event(name="group.admitted", at=0.0, values={"ticket": ticket, "group": id}))
        for update, tickets in ((1, "0,1"), (2, "2,3,4")):
            store.emit(Event(name="batch.taken", at=1.0, values={"update": update, "tickets": tickets}))
    return tmp_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """Wants a column that nobody stored."""

    name: ClassVar[str] = "blind"
    needs: ClassVar[frozenset[str]] = frozenset({"value"})
    scope: ClassVar = "batch"
    min_rollouts: ClassVar[int] = 1

    def __call__(self, forest):
        return NodeCredit(advantage=forest.note("value"))


class Broken(Blind):
    """Gives what is no number."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, forest):
        return NodeCredit(advantage=np.full(len(forest), np.nan))


class AcrossGroups(Blind):
    """Compares with all groups of its batch."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, forest):
        return NodeCredit(advantage=np.full(len(forest), float(len(forest.keys))))


def test_a_rule_says_of_a_stored_tree_what_it_says_of_it_in_training(run):
    found = ablate(run, asked("grpo,tree_pg"), group="hand")
    tree = found.tree
    assert tree is not None
    assert [len(one.ids) for one in tree.actions] == [2, 2, 1, 2]
    assert [one.before for one in tree.actions] == [-1, 0, 0, -1]
    assert [one.reward for one in tree.actions] == [0.0, 1.0, 0.0, 0.0]
    assert [one.rollouts for one in tree.actions] == [2, 1, 1, 1]
    assert [one.ends for one in tree.actions] == [(), ("ok 1",), ("ok 0",), ("ok 0",)]
    assert [one.advantage[1] for one in tree.actions] == pytest.approx([0.5, 1.0, -1.0, -0.5])
    assert [one.mass[1] for one in tree.actions] == pytest.approx([0.5, 0.25, 0.25, 0.5])
    assert [one.advantage[0] for one in tree.actions][1:] == pytest.approx([1.1547, -0.5773, -0.5773], abs=1e-4)


def test_dead_groups_and_singletons_are_told_apart(run):
    grpo, = ablate(run, asked("grpo")).rules
    assert (grpo.judged, grpo.dead, grpo.singletons) == (3, 1, 1)
    found = ablate(run, asked("grpo"))
    assert (found.batches, found.groups, found.invalid) == (2, 4, 1)


def test_one_update_is_judged_alone(run):
    found = ablate(run, asked("grpo"), update=2)
    assert (found.batches, found.groups, found.rules[0].dead) == (1, 2, 1)
    assert signal_by_turn(found, found.rules[0]) == {}


def test_a_rule_that_looks_across_groups_sees_its_batch(run):
    found = ablate(run, [Asked(text="across", rule=AcrossGroups())])
    assert sorted(set(found.rules[0].advantage.tolist())) == [2.0]
    assert ablate(run, [Asked(text="across", rule=AcrossGroups())], group="g1").rules[0].judged == 2


def test_it_is_told_whose_numbers_depend_on_groups_that_are_not_shown(run):
    found = ablate(run, [Asked(text="across", rule=AcrossGroups()), *asked("grpo")], group="g1")
    assert {name: one["scope"] for name, one in record(found)["rules"].items()} == {"across": "batch", "grpo": "group"}
    lines = ablation_lines(found, None)
    (head,) = (number for number, line in enumerate(lines) if line.startswith("rule "))
    assert [line.split()[:3] for line in lines[head : head + 3]] == [
        ["rule", "scope", "judged"], ["across", "batch", "2"], ["grpo", "group", "2"]
    ]


@pytest.mark.parametrize(
    ("rule", "why"), [(Blind(), "needs value, which a learner computes"), (Broken(), "got no finite advantage")]
)
def test_what_a_rule_cannot_judge_has_a_reason_and_no_numbers(run, rule, why):
    found = ablate(run, [Asked(text="odd", rule=rule), *asked("grpo")])
    assert found.rules[0].silent
    assert np.isnan(found.rules[0].advantage).all()
    assert agreements(found) == []
    told = record(found)["rules"]["odd"]
    assert told["judged"] == 0
    assert any(why in reason for reason in told["cannot_judge"])
    assert any(f"cannot judge this run: {reason}" in line for reason in told["cannot_judge"]
               for line in ablation_lines(found, None))  # fmt: skip


def test_a_rule_agrees_with_itself_and_with_its_multiple(run):
    found = ablate(run, [*asked("grpo,rloo"), Asked(text="again", rule=Grpo())])
    pairs = {(one.left, one.right): one for one in agreements(found)}
    same = pairs["grpo", "again"]
    assert (same.pearson, same.spearman, same.sign) == pytest.approx((1.0, 1.0, 1.0))
    assert pairs["grpo", "rloo"].sign == 1.0
    assert pairs["grpo", "rloo"].spearman == pytest.approx(1.0)


def test_rules_that_differ_are_seen_to(run):
    found = ablate(run, asked("grpo,tree_pg"), group="hand", update=1)
    (pair,) = agreements(found)
    assert pair.sign is not None
    assert pair.sign < 1.0 or (pair.spearman or 0) < 1.0
    assert pair.actions == 7


def test_the_share_of_the_signal_is_by_turn(run):
    found = ablate(run, asked("tree_pg"), update=1)
    shares = signal_by_turn(found, found.rules[0])
    assert sum(shares.values()) == pytest.approx(1.0)
    hand, flat = 0.5 * 0.5 + 0.5 * 0.5, 1.0 / 3 + 2 * 0.5 / 3
    assert shares[1] == pytest.approx(0.5 / (hand + 0.5 + flat))


def test_the_tree_that_is_shown_is_one_that_most_rules_give_credit(run):
    assert ablate(run, asked("grpo,tree_pg")).tree.group == "g1"
    assert ablate(run, asked("grpo"), group="g3").tree.group == "g3"


def test_a_run_without_a_ledger_is_judged_as_one_batch(tmp_path):
    with TrajectoryStore(tmp_path / "run.db", clock=SystemClock()) as store:
        hand_tree(sink=store)
    assert ablate(tmp_path, asked("grpo")).batches == 1


def test_a_group_that_is_to_be_played_again_is_not_there_yet(run):
    with TrajectoryStore(run / "run.db", clock=SystemClock()) as store:
        store.emit(Event(name="group.admitted", at=2.0, values={"ticket": 5, "group": "felled"}))
    found = ablate(run, asked("grpo"))
    assert (found.batches, found.groups, found.invalid) == (2, 4, 1)


def test_a_run_is_judged_while_it_is_written(tmp_path):
    store = TrajectoryStore(tmp_path / "run.db", clock=SystemClock())
    try:
        grown = hand_tree(sink=store)
        grown.group.begin(7)
        store.flush()
        assert ablate(tmp_path, asked("grpo")).tree.rollouts == 3
    finally:
        store.close()


def test_the_record_is_strict_json(run):
    found = ablate(run, [*asked("grpo,tree_pg"), Asked(text="odd", rule=Blind())], group="g3")
    assert json.loads(json.dumps(record(found), allow_nan=False))["groups"] == 2


def test_the_tree_is_drawn_with_its_forks_and_hides_what_drives_a_terminal(run):
    lines = ablation_lines(ablate(run, asked("grpo,tree_pg"), group="hand"), lambda ids: f"say\x1b[2J\n{len(ids)}")
    assert lines[0] == "group hand  task task-0  family planted  3 rollouts"
    assert [line.split(" say")[0] for line in lines[2:6]] == ["├─ 0", "│  ├─ 1", "│  └─ 1", "└─ 0"]
    assert r"say\x1b[2J 2" in lines[2]
    assert lines[3].split()[-6:] == ["1", "+1", "+1.155", "+1.000", "ok", "1"]
    assert not any("\x1b" in line for line in lines)


def test_rules_are_named_with_options():
    grpo, tree = asked("grpo:std=false:eps=0.1,tree_pg:root=0.5")
    assert grpo.rule == Grpo(std=False, eps=0.1)
    assert tree.rule == TreePg(root=0.5)
    assert asked(" rloo ")[0].rule == Rloo()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grop", "--rules: unknown rule 'grop'; did you mean 'grpo'?"), (",", "--rules: got no rule"),
        ("rloo,rloo", "got rloo twice"), ("grpo:sdt=false", "--rules grpo: unknown key 'sdt'; did you mean 'std'?"),
        ("grpo:std", "got 'std', expected key=value"), ("grpo:eps=-1", "grpo.eps: got -1.0, expected > 0"),
    ],
)
def test_a_rule_that_cannot_be_asked_for_is_one_line(text, said):
    with pytest.raises(ConfigError) as error:
        asked(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"group": "g9"}, "has no group 'g9' among 5; nearest:"),
        ({"update": 9}, "got 9, expected one that took its batch"),
        ({"update": 0}, "has updates 1 to 2"),
        ({"group": "lost", "update": 1}, "group lost: got 1 groups without a valid rollout"),
    ],
)
def test_what_is_not_there_is_one_line(run, where, said):
    with pytest.raises(ConfigError) as error:
        ablate(run, asked("grpo"), **where)
    assert said in str(error.value)
