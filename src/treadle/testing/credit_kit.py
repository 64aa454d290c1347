"""`check_credit`: what every credit rule must hold, tried on random forests.

A case is a batch of two random groups: forks, context breaks, step rewards, demonstrations, failed rollouts. It has the
notes that the rule needs, probes and state keys, all of which follow what was said and not how it is stored. It is
judged once as it is and once per edit that tells the same story in other rows; an edit changes nothing that happened,
so it may change no credit. Action tokens carry their identity as their id, so credit is compared token by token,
whatever rows they ended up in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from treadle.algorithms.aggregation import Aggregation, TokenMean
from treadle.algorithms.conditions import Telling
from treadle.algorithms.credit import Collapsed, CreditRule, TokenCredit
from treadle.algorithms.shared import PathSum, Shared
from treadle.core.outcome import Origin, failure
from treadle.testing.forest_edits import (
    break_context,
    cut_actions,
    junk_observations,
    shuffle_siblings,
    split_observations,
)
from treadle.testing.forests import Node, grow
from treadle.testing.planted import plant
from treadle.testing.random_forests import Growth, random_tree
from treadle.trajectory.forest import Column, Forest
from treadle.trajectory.segment import Author

Credit = dict[int, tuple[float, ...]]
"""(A+, A-, mass) by action token, and what a value function should say before it where a rule tells that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a rule is tried with."""

    aggregation: Aggregation = field(default_factory=TokenMean)
    shared: Shared = field(default_factory=PathSum)
    nonnegative: bool = False
    """True when the rule takes no reward below 0."""
    edits: Collection[str] | None = None
    """Names of the edits to try, of those in `EDITS`; None tries all."""


def check_credit(
    rule: CreditRule, *, aggregation: Aggregation | None = None, trial: Trial | None = None, cases: int = 10,
    seed: int = 0,
) -> None:
    """Hold a rule to invariants 2 to 5. Raises AssertionError naming the property and the case."""
    trial = trial or Trial()
    trial = trial if aggregation is None else replace(trial, aggregation=aggregation)
    for case in range(cases):
        rng = np.random.default_rng((seed, case))
        growth = Growth(breaks=0.0, demonstration=0.5 if case % 3 == 2 else 0.0)
        numbers = count(1)
        batch = [_numbered(random_tree(rng, growth), numbers) for _ in range(2)]
        if trial.nonnegative:
            batch = [_paying(root) for root in batch]
        _Case(rule, trial, f"rule {rule.name}, case {case} of seed {seed}").check(batch, rng)


def token_credit(forest: Forest, collapsed: Collapsed, returns: Column | None = None) -> Credit:
    """(A+, A-, mass) of every action token by its id, which must be unique in the forest; `returns` [T] comes after."""
    columns = [forest.spread(column) for column in (collapsed.pos, collapsed.neg, collapsed.mass)]
    table = np.stack(columns if returns is None else [*columns, returns], axis=1)
    out: Credit = {}
    for row in np.flatnonzero(forest.action):
        for token, numbers in zip(forest.segments[row].ids.tolist(), table[forest.start[row] :], strict=False):
            assert token not in out, "action ids must be unique"
            out[token] = tuple(numbers.tolist())
    return out


def move_rewards(root: Node) -> Node:
    """Rewards of actions, moved to the observation after them where there is just one."""
    children = tuple(move_rewards(child) for child in root.children)
    if root.author is not Author.ENV and len(children) == 1 and children[0].author is Author.ENV:
        paid = replace(children[0], reward=children[0].reward + root.reward)
        return replace(root, reward=0.0, children=(paid,))
    return replace(root, children=children)


def _with_lost(root: Node) -> Node:
    """The tree with one more rollout, which the machinery lost after it had earned a reward."""
    ids = (2**31 - 2, 2**31 - 1)
    lost = Node(
        name="lost", author=Author.POLICY, ids=ids, reward=5.0, end=failure(Origin.INFRA, RuntimeError("lost"))
    )
    return replace(root, children=(*root.children, lost))


EDITS: Mapping[str, Callable[[Node, np.random.Generator], Node]] = {
    "splitting observations": lambda root, rng: split_observations(root),
    "inserting tokens of the world": lambda root, rng: junk_observations(root),
    "adding context breaks": lambda root, rng: break_context(root),
    "cutting actions in two": lambda root, rng: cut_actions(root),
    "permuting siblings": shuffle_siblings,
    "putting rewards on observations": lambda root, rng: move_rewards(root),
    "a rollout lost to the machinery": lambda root, rng: _with_lost(root),
}
"""What may change no credit."""


class _Case:
    """One batch under one rule."""

    def __init__(self, rule: CreditRule, trial: Trial, where: str) -> None:
        self._rule, self._trial, self._where = rule, trial, where

    def check(self, batch: Sequence[Node], rng: np.random.Generator) -> None:
        """Every property. Raises AssertionError for the first that does not hold."""
        expected, denominator = self._judge(batch)
        for what, edit in EDITS.items():
            if self._trial.edits is not None and what not in self._trial.edits:
                continue
            got, other = self._judge([edit(root, rng) for root in batch])
            self._same(expected, got, what)
            if not np.isclose(denominator, other, rtol=1e-9):
                raise AssertionError(f"{self._where}: {what} changed the denominator: {other}, not {denominator}")
        if self._rule.scope == "group":
            alone, _ = self._judge(batch[:1])
            self._same({token: expected[token] for token in alone}, alone, "leaving out another group")

    def _judge(self, batch: Sequence[Node]) -> tuple[Credit, float]:
        forest = Forest.of([grow(root, id=f"g{i}", ticket=i).group for i, root in enumerate(batch)])
        forest = plant(forest, self._rule.needs)
        weight, denominator = self._trial.aggregation.weights(forest)
        credit = self._rule(forest)
        if isinstance(self._rule, Telling) and self._rule.gives != credit.gives:
            said = self._rule.gives
            raise AssertionError(f"{self._where}: it says that it gives {said!r}, but its credit is {credit.gives!r}")
        collapsed = credit.collapse(forest, weight, self._trial.shared)
        self._signs(forest, collapsed)
        returns = credit.returns if isinstance(credit, TokenCredit) else None
        return token_credit(forest, collapsed, returns), denominator

    def _signs(self, forest: Forest, collapsed: Collapsed) -> None:
        columns = np.stack([forest.spread(c) for c in (collapsed.pos, -collapsed.neg, collapsed.mass)])
        if not np.isfinite(columns).all() or (columns < 0).any():
            raise AssertionError(f"{self._where}: A+ and mass must be finite and >= 0, A- finite and <= 0")
        if columns[:, np.repeat(~forest.action, forest.length)].any():
            raise AssertionError(f"{self._where}: a token of the world carries credit")

    def _same(self, expected: Credit, got: Credit, what: str) -> None:
        if expected.keys() != got.keys():
            raise AssertionError(f"{self._where}: {what} changed which tokens are trained")
        for token, numbers in expected.items():
            if not np.allclose(numbers, got[token], rtol=1e-9, atol=1e-12, equal_nan=True):
                raise AssertionError(f"{self._where}: {what} changed token {token}: {got[token]}, not {numbers}")


def _paying(node: Node) -> Node:
    """The tree without rewards below 0."""
    return replace(node, reward=abs(node.reward), children=tuple(_paying(child) for child in node.children))


def _numbered(node: Node, numbers: count[int]) -> Node:
    """The tree with a new id for every action token."""
    ids = node.ids if node.author is Author.ENV else tuple(next(numbers) for _ in node.ids)
    return replace(node, ids=ids, children=tuple(_numbered(child, numbers) for child in node.children))
