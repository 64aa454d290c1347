"""The offline ablation: what other credit rules would have made of a run that is stored.

    run.db --batches as they were taken--> Forest --each rule--> A, mass by action --> figures, and one group's tree

Nothing is generated: the rollouts are those that the run played, with the rewards that it paid. Every rule judges the
same batches, so a rule that looks across groups sees what it would have seen. A group with fewer valid rollouts than a
rule compares is left out for that rule, as training leaves it out, and counted as its singleton. What a rule cannot
judge it does not judge: it says why, and has no numbers.

A run may be read while it is played: rollouts that have not ended are not there yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from treadle.algorithms.aggregation import SeqSumConst
from treadle.algorithms.credit import CreditRule, Scope, assign
from treadle.algorithms.rules import RULES
from treadle.core.config import apply, did_you_mean, read_sets
from treadle.core.errors import ConfigError, StoreError, one_line
from treadle.observability.facts import text, whole
from treadle.trajectory.forest import Column, Forest
from treadle.trajectory.group import Group
from treadle.trajectory.store import read_events, read_group, read_keys

NOTHING = 1e-9
"""An advantage of no more than this is none: what is left of adding and taking away the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A rule to be tried."""

    text: str
    """As it was asked for, such as `gigpo:omega=0.5`."""
    rule: CreditRule

    @classmethod
    def of(cls, text: str) -> Asked:
        """The rule of a text `NAME` or `NAME:key=value:key=value`. Raises ConfigError."""
        name, *options = text.strip().split(":")
        if name not in RULES:
            raise ConfigError(f"--rules: unknown rule {name!r}{did_you_mean(name, RULES)} (rules: {', '.join(RULES)})")
        try:
            return cls(text=text.strip(), rule=apply(RULES[name](), read_sets(options)))
        except ConfigError as error:
            raise ConfigError(f"--rules {name}: {error}") from error


def asked(texts: str) -> list[Asked]:
    """The rules of a list with commas. Raises ConfigError for one that is unknown or named twice."""
    found = [Asked.of(text) for text in texts.split(",") if text.strip()]
    if not found:
        raise ConfigError(f"--rules: got no rule, expected some of {', '.join(RULES)}")
    twice = [text for text, times in Counter(one.text for one in found).items() if times > 1]
    if twice:
        raise ConfigError(f"--rules: got {twice[0]} twice, expected each rule once")
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdicts:
    """What one rule said of all actions, M of them in all batches."""

    text: str
    scope: Scope
    """`batch`: what it says of a group depends on the others of its batch."""
    advantage: Column
    """[M] mean over the rollouts, or the tokens, of the action; NaN where the rule did not judge."""
    mass: Column
    """[M] how much the action counts for this rule; 0 where it did not judge."""
    judged: int
    """Groups."""
    dead: int
    """Judged groups in which every action got 0."""
    singletons: int
    """Groups that were left out because they have fewer valid rollouts than the rule compares."""
    reasons: Mapping[str, int]
    """Why it could not judge, and how many batches."""

    @property
    def silent(self) -> bool:
        """Whether it judged nothing."""
        return not self.judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One action of the tree that is shown."""

    segment: str
    before: int
    """Place of the action before it in time, in the same list; -1 for the first."""
    turn: int
    ids: tuple[int, ...]
    rollouts: int
    """Rollouts that run through it."""
    reward: float
    """Training reward that was put on it."""
    advantage: tuple[float | None, ...]
    """By rule; None where it did not judge."""
    mass: tuple[float, ...]
    ends: tuple[str, ...]
    """How rollouts end behind it: `ok 1`, `truncated 0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One group, judged."""

    group: str
    task: str
    family: str
    rollouts: int
    """That train."""
    probes: int
    """Played only to see what a state is worth."""
    actions: tuple[Judged, ...]
    """Parents first, depth first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ablation:
    """All of it."""

    rules: tuple[Verdicts, ...]
    turn: Column
    """[M] number of each action's turn."""
    batches: int
    groups: int
    """With at least one valid rollout."""
    invalid: int
    """Groups without a valid rollout."""
    tree: Tree | None


def ablate(
    path: Path, rules: Sequence[Asked], *, group: str | None = None, update: int | None = None
) -> Ablation:
    """Judge a stored run: all of it, one update, or the batch of one group. `path` is a run folder or a database.

    Raises ConfigError when there is no such group or update, or nothing that could be judged.
    """
    batches = _chosen(_batches(path), path, group=group, update=update)
    work = _Work(rules, wanted=group)
    for ids in batches:
        work.take([_read(path, id) for id in ids])
    if not work.groups:
        where = f"group {group}" if group is not None else f"update {update}" if update is not None else str(path)
        raise ConfigError(f"{where}: got {work.invalid} groups without a valid rollout, expected one that was scored")
    return work.done(len(batches))


# -- reading ---------------------------------------------------------------------------------------------------


def _batches(path: Path) -> dict[int, list[str]]:
    """Group ids by the update that took them; 0 holds those that none took, or all where the run has no ledger.

    A group that is admitted but not there is one that is played again from its start.
    """
    held = {key.id: key for key in read_keys(path)}
    admitted = {whole(e, "ticket"): text(e, "group") for e in read_events(path, prefix="group.admitted")}
    if not admitted:
        return {0: [id for id, key in held.items() if key.split == "train"]}
    admitted = {ticket: id for ticket, id in admitted.items() if id in held}
    out: dict[int, list[str]] = {}
    for event in read_events(path, prefix="batch.taken"):
        tickets = [int(ticket) for ticket in text(event, "tickets").split(",") if ticket]
        out[whole(event, "update")] = [admitted.pop(ticket) for ticket in tickets if ticket in admitted]
    return out | ({0: list(admitted.values())} if admitted else {})


def _chosen(
    batches: Mapping[int, list[str]], path: Path, *, group: str | None, update: int | None
) -> list[list[str]]:
    if update is not None:
        if update not in batches or update == 0:
            known = [number for number in batches if number]
            held = f"updates {min(known)} to {max(known)}" if known else "no update"
            raise ConfigError(f"--update: got {update}, expected one that took its batch: {path} has {held}")
        batches = {update: batches[update]}
    if group is None:
        return [ids for ids in batches.values() if ids]
    return [next((ids for ids in batches.values() if group in ids), [group])]


def _read(path: Path, id: str) -> Group:
    try:
        return read_group(path, id)
    except StoreError as error:
        raise ConfigError(f"--group: {error}") from error


# -- judging ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rule:
    """What a rule has said so far."""

    asked: Asked
    advantage: list[Column] = field(default_factory=list)
    mass: list[Column] = field(default_factory=list)
    judged: int = 0
    dead: int = 0
    singletons: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def judge(self, forest: Forest, groups: Sequence[Group]) -> tuple[Column, Column]:
        """[N] advantage, NaN where it did not judge, and mass of every row; counts what it found."""
        advantage, mass = np.full(len(forest), np.nan), np.zeros(len(forest))
        enough = np.array([len(group.valid) >= self.asked.rule.min_rollouts for group in groups], dtype=bool)
        self.singletons += int((~enough).sum())
        if enough.any():
            part = forest if enough.all() else Forest.of([g for g, own in zip(groups, enough, strict=True) if own])
            rows = enough[forest.group]
            try:
                advantage[rows], mass[rows] = _credit(self.asked.rule, part)
            except ValueError as error:
                self.reasons[one_line(error)] += 1
                enough[:] = False
        alive = np.bincount(forest.group, weights=mass * (np.abs(np.nan_to_num(advantage)) > NOTHING),
                            minlength=len(groups)) > 0  # fmt: skip
        self.judged += int(enough.sum())
        self.dead += int((enough & ~alive).sum())
        self.advantage.append(advantage[forest.action])
        self.mass.append(mass[forest.action])
        return advantage, mass

    def done(self) -> Verdicts:
        """All of it."""
        return Verdicts(
            text=self.asked.text, scope=self.asked.rule.scope, advantage=np.concatenate(self.advantage),
            mass=np.concatenate(self.mass), judged=self.judged, dead=self.dead, singletons=self.singletons,
            reasons=dict(self.reasons),
        )


def _credit(rule: CreditRule, forest: Forest) -> tuple[Column, Column]:
    """[N] advantage and mass of each row. Raises ValueError when the rule cannot judge the forest."""
    missing = sorted(rule.needs - forest.notes.keys())
    if missing:
        raise ValueError(f"needs {', '.join(missing)}, which a learner computes while it trains and no run stores")
    collapsed, _ = assign(forest, rule, SeqSumConst(constant=1.0))
    summed, mass = _rows(forest, collapsed.pos + collapsed.neg), _rows(forest, collapsed.mass)
    return np.divide(summed, mass, out=np.zeros(len(forest)), where=mass > 0), mass


def _rows(forest: Forest, column: Column) -> Column:
    """A column of tokens [T] as means of rows [N]; one of rows as it is."""
    if len(column) == len(forest):
        return column
    return np.asarray(np.add.reduceat(column, forest.start[:-1]) / forest.length)


class _Work:
    """Goes through the batches and keeps what is told at the end."""

    def __init__(self, rules: Sequence[Asked], *, wanted: str | None) -> None:
        self._rules = [_Rule(one) for one in rules]
        self._wanted = wanted
        self._turn: list[Column] = []
        self._tree: Tree | None = None
        self._best = -1
        """How many rules gave credit to the group whose tree is kept."""
        self.groups = 0
        self.invalid = 0

    def take(self, groups: Sequence[Group]) -> None:
        """One batch."""
        valid = [group for group in groups if group.valid]
        self.groups += len(valid)
        self.invalid += len(groups) - len(valid)
        if not valid:
            return
        forest = Forest.of(valid)
        said = [rule.judge(forest, valid) for rule in self._rules]
        self._turn.append(forest.turn[forest.action].astype(np.float64))
        for number, group in enumerate(valid):
            rows = (forest.group == number) & forest.action
            credit = sum(bool((np.abs(np.nan_to_num(a[rows])) > NOTHING).any()) for a, _ in said)
            wanted = credit >= self._best if self._wanted is None else group.key.id == self._wanted
            if wanted:
                self._best = credit
                self._tree = Tree(
                    group=group.key.id, task=group.key.task, family=group.key.family, rollouts=len(group.valid),
                    probes=sum(rollout.probe for rollout in group.rollouts.values()),
                    actions=tuple(_actions(forest, number, said)),
                )

    def done(self, batches: int) -> Ablation:
        """All of it."""
        return Ablation(
            rules=tuple(rule.done() for rule in self._rules), turn=np.concatenate(self._turn), batches=batches,
            groups=self.groups, invalid=self.invalid, tree=self._tree,
        )


def _actions(forest: Forest, group: int, said: Sequence[tuple[Column, Column]]) -> Iterator[Judged]:
    """The actions of one group, depth first in time."""
    last = np.full(len(forest), -1)  # nearest action at or before each row
    below: dict[int, list[int]] = {}
    ends: dict[int, list[str]] = {}
    for row in np.flatnonzero(forest.group == group).tolist():
        above = int(last[forest.after[row]]) if forest.after[row] >= 0 else -1
        last[row] = row if forest.action[row] else above
        if forest.action[row]:
            below.setdefault(above, []).append(row)
    for rollout, leaf in zip(forest.rollouts, forest.rollout_leaf.tolist(), strict=True):
        if forest.group[leaf] == group and rollout.outcome is not None and rollout.reward is not None:
            ends.setdefault(int(last[leaf]), []).append(f"{rollout.outcome.status.value} {rollout.reward:g}")
    through, place = forest.up(forest.leaves), {-1: -1}
    stack = below.get(-1, [])[::-1]
    while stack:
        row = stack.pop()
        stack += below.get(row, [])[::-1]
        before = int(last[forest.after[row]]) if forest.after[row] >= 0 else -1
        place[row] = len(place) - 1
        segment = forest.segments[row]
        yield Judged(
            segment=segment.id, before=place[before], turn=int(forest.turn[row]), ids=tuple(segment.ids.tolist()),
            rollouts=int(through[row]), reward=float(forest.reward[row]), ends=tuple(ends.get(row, ())),
            advantage=tuple(None if np.isnan(a[row]) else float(a[row]) for a, _ in said),
            mass=tuple(float(mass[row]) for _, mass in said),
        )
