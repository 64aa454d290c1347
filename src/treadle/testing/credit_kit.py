"""`check_credit`: what every credit rule must hold, tried on random forests.

A case is a batch of two random groups: forks, context breaks, step rewards, demonstrations, failed rollouts. It is
judged once as it is and once per edit that tells the same story in other rows; an edit changes nothing that happened,
so it may change no credit. Action tokens carry their identity as their id, so credit is compared token by token,
whatever rows they ended up in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from treadle.algorithms.aggregation import Aggregation, TokenMean
from treadle.algorithms.credit import Collapsed, CreditRule, assign
from treadle.core.outcome import Origin, failure
from treadle.testing.forest_edits import (
    break_context,
    cut_actions,
    junk_observations,
    shuffle_siblings,
    split_observations,
)
from treadle.testing.forests import Node, grow
from treadle.testing.random_forests import Growth, random_tree
from treadle.trajectory.forest import Forest
from treadle.trajectory.segment import Author

Credit = dict[int, tuple[float, float, float]]
"""(A+, A-, mass) by action token."""


def check_credit(
    rule: CreditRule, *, aggregation: Aggregation | None = None, cases: int = 10, seed: int = 0
) -> None:
    """Hold a rule to invariants 2 to 5. Raises AssertionError naming the property and the case."""
    for case in range(cases):
        rng = np.random.default_rng((seed, case))
        growth = Growth(breaks=0.0, demonstration=0.5 if case % 3 == 2 else 0.0)
        numbers = count(1)
        batch = [_numbered(random_tree(rng, growth), numbers) for _ in range(2)]
        _Case(rule, aggregation or TokenMean(), f"rule {rule.name}, case {case} of seed {seed}").check(batch, rng)


def token_credit(forest: Forest, collapsed: Collapsed) -> Credit:
    """(A+, A-, mass) of every action token by its id, which must be unique in the forest."""
    out: Credit = {}
    for row in np.flatnonzero(forest.action):
        for token in forest.segments[row].ids.tolist():
            assert token not in out, "action ids must be unique"
            out[token] = (float(collapsed.pos[row]), float(collapsed.neg[row]), float(collapsed.mass[row]))
    return out


def move_rewards(root: Node) -> Node:
    """Rewards of actions, moved to the observation after them where there is just one."""
    children = tuple(move_rewards(child) for child in root.children)
    if root.author is not Author.ENV and len(children) == 1 and children[0].author is Author.ENV:
        paid = replace(children[0], reward=children[0].reward + root.reward)
        return replace(root, reward=0.0, children=(paid,))
    return replace(root, children=children)


class _Case:
    """One batch under one rule."""

    def __init__(self, rule: CreditRule, aggregation: Aggregation, where: str) -> None:
        self._rule, self._aggregation, self._where = rule, aggregation, where

    def check(self, batch: Sequence[Node], rng: np.random.Generator) -> None:
        """Every property. Raises AssertionError for the first that does not hold."""
        forest, collapsed, denominator = self._judge(batch)
        self._signs(forest, collapsed)
        expected = token_credit(forest, collapsed)
        edits: dict[str, Callable[[Node], Node]] = {
            "splitting observations": split_observations,
            "inserting tokens of the world": junk_observations,
            "adding context breaks": break_context,
            "cutting actions in two": cut_actions,
            "permuting siblings": lambda root: shuffle_siblings(root, rng),
            "putting rewards on observations": move_rewards,
            "a rollout lost to the machinery": _with_lost,
        }
        for what, edit in edits.items():
            forest, collapsed, other = self._judge([edit(root) for root in batch])
            self._same(expected, token_credit(forest, collapsed), what)
            if not np.isclose(denominator, other, rtol=1e-9):
                raise AssertionError(f"{self._where}: {what} changed the denominator: {other}, not {denominator}")
        if self._rule.scope == "group":
            forest, collapsed, _ = self._judge(batch[:1])
            alone = token_credit(forest, collapsed)
            self._same({token: expected[token] for token in alone}, alone, "leaving out another group")

    def _judge(self, batch: Sequence[Node]) -> tuple[Forest, Collapsed, float]:
        forest = Forest.of([grow(root, id=f"g{i}", ticket=i).group for i, root in enumerate(batch)])
        return forest, *assign(forest, self._rule, self._aggregation)

    def _signs(self, forest: Forest, collapsed: Collapsed) -> None:
        columns = np.stack([collapsed.pos, -collapsed.neg, collapsed.mass])
        if not np.isfinite(columns).all() or (columns < 0).any():
            raise AssertionError(f"{self._where}: A+ and mass must be finite and >= 0, A- finite and <= 0")
        if columns[:, ~forest.action].any():
            raise AssertionError(f"{self._where}: a token of the world carries credit")

    def _same(self, expected: Credit, got: Credit, what: str) -> None:
        if expected.keys() != got.keys():
            raise AssertionError(f"{self._where}: {what} changed which tokens are trained")
        for token, numbers in expected.items():
            if not np.allclose(numbers, got[token], rtol=1e-9, atol=1e-12):
                raise AssertionError(f"{self._where}: {what} changed token {token}: {got[token]}, not {numbers}")


def _numbered(node: Node, numbers: count[int]) -> Node:
    """The tree with a new id for every action token."""
    ids = node.ids if node.author is Author.ENV else tuple(next(numbers) for _ in node.ids)
    return replace(node, ids=ids, children=tuple(_numbered(child, numbers) for child in node.children))


def _with_lost(root: Node) -> Node:
    """The tree with one more rollout, which the machinery lost after it had earned a reward."""
    ids = (2**31 - 2, 2**31 - 1)
    lost = Node(
        name="lost", author=Author.POLICY, ids=ids, reward=5.0, end=failure(Origin.INFRA, RuntimeError("lost"))
    )
    return replace(root, children=(*root.children, lost))
