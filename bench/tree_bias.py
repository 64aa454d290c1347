"""Does a credit rule follow the policy's gradient on a tree whose fan-out depends on what was done?

Two decision problems (`treadle.testing.known_gradients`): every tree that can be played is played, with its
probability, through Forest, the rule, pack, loss and autograd; the mean gradient stands beside the true one. There is
no noise in these figures. Beside them trees are drawn and trained as one update, to check the enumeration itself.

What tree_pg rests on is broken one condition at a time: a standard deviation, a token mean, a group's own return at
its root, and forks of chains that were finished.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.machine import machine
from treadle.algorithms.aggregation import Aggregation, SeqSumConst, TokenMean
from treadle.algorithms.conditions import Conditional
from treadle.algorithms.credit import CreditRule, NodeCredit, Scope
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.algorithms.tree_pg import TreePg, others
from treadle.testing.forests import Node
from treadle.testing.known_gradients import (
    Measured,
    Play,
    Problem,
    Table,
    batches,
    drawn_tree,
    every_play,
    gradient,
    measured,
    three_turn,
    tree,
    two_turn,
)
from treadle.trajectory.forest import Column, Forest

LINE = "each rule's mean gradient against the true one on adaptively forked trees, enumerated (about a minute)"
PROBLEMS: tuple[Callable[[], Problem], ...] = (two_turn, three_turn)


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--trees", type=int, default=2000, help="trees of the drawn check (default 2000)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMean:
    """Every rollout of the update counts the same, however long: what flattening a tree into rows does."""

    name: ClassVar[str] = "rollout_mean"
    constant_denominator: ClassVar[bool] = False

    def weights(self, forest: Forest) -> tuple[Column, float]:
        """1 per rollout; the number of rollouts."""
        return np.ones(len(forest.rollouts)), float(max(len(forest.rollouts), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """tree_pg with something else in place of its advantage."""

    needs: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Scope] = "group"
    min_rollouts: ClassVar[int] = 2
    name: ClassVar[str] = "tree_pg"


class Scaled(Broken):
    """Divided by the standard deviation of the group's returns."""

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        own, std = TreePg()(forest), np.ones(len(forest.keys))
        for group in range(len(std)):
            returns = forest.returns[forest.rollout_group == group]
            std[group] = returns.std(ddof=1) + 1e-6 if len(returns) > 1 and np.ptp(returns) > 0 else 1.0
        return NodeCredit(advantage=own.advantage / std[forest.group], weight=own.weight)


class OwnRoot(Broken):
    """A group's root is compared with the group's own return."""

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        q = forest.child_mean(forest.returns)
        return NodeCredit(advantage=q - others(forest, q, at_root=q), weight=forest.descent)


class GroupMean(Broken):
    """Every node is compared with the group's mean, itself included."""

    def __call__(self, forest: Forest) -> NodeCredit:
        """One advantage per segment."""
        q = forest.child_mean(forest.returns)
        root = np.flatnonzero(forest.after < 0)
        mean = np.zeros(len(forest.keys))
        mean[forest.group[root]] = q[root]
        return NodeCredit(advantage=q - mean[forest.group], weight=forest.descent)


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    constant = SeqSumConst(constant=1.0)
    rules: dict[str, tuple[CreditRule, Aggregation]] = {"flatten_grpo": (Grpo(std=False), RolloutMean())}
    for name, kind in RULES.items():
        rule = kind()
        rules[name] = (rule, constant if isinstance(rule, Conditional) and rule.constant_denominator else RolloutMean())
    del rules["imitation"]
    told: dict[str, object] = {name: _told(rule, how) for name, (rule, how) in rules.items()}
    finished = {"two_turn": measured(TreePg(), two_turn(), trees=finished_chains(two_turn()))}
    return {
        "problems": len(PROBLEMS), **told,
        "broken": {
            "std": _told(Scaled(), constant), "token_mean": _told(TreePg(), TokenMean()),
            "own_root": _told(OwnRoot(), constant), "group_mean": _told(GroupMean(), constant),
            "finished_chains": _said(finished),
        },
        "drawn": {problem().name: _drawn(problem(), args.trees) for problem in PROBLEMS},
        "aggregation": {name: how.name for name, (_, how) in rules.items()}, "machine": machine(),
    }


def finished_chains(problem: Problem) -> list[tuple[float, Node]]:
    """Trees of three chains without forks; each that began with the first option is then forked at one of its turns.

    How often the root forks is known only when its children are: what `fanout_before_children` denies.
    """
    table = Table(problem)
    second = {option: every_play(option.then, table) for option in problem.root.options if option.then is not None}
    lone = [
        (math.exp(float(table.logprobs(problem.root, option).detach().sum())) * q, option, below)
        for option, plays in second.items() for q, below in plays
    ]
    kinds: list[tuple[float, tuple[Play, ...]]] = []
    for p, option, below in lone:
        if option is not problem.root.options[0]:
            kinds.append((p, (Play(option, (below,)),)))
            continue
        kinds += [(p * 0.5 * q, (Play(option, (below, again)),)) for q, again in second[option]]
        kinds += [(p * 0.5 * q, (Play(option, (below,)), Play(other, (end,)))) for q, other, end in lone]
    marked = [(p, Play(problem.root.options[0], plays)) for p, plays in kinds]  # a chain with its fork, as one play
    return [
        (p, tree(problem.root, [play for chain in chosen for play in chain.below], table))
        for p, chosen in batches(marked, 3)
    ]


def _told(rule: CreditRule, aggregation: Aggregation) -> dict[str, object]:
    """Figures of one rule in all problems, or why it cannot judge them."""
    try:
        return _said({p.name: measured(rule, p, aggregation=aggregation) for p in (make() for make in PROBLEMS)})
    except ValueError as error:
        return {"cannot_judge": str(error)}


def _said(found: Mapping[str, Measured]) -> dict[str, object]:
    return {
        "max_abs_bias": max(one.bias for one in found.values()),
        "cosine": min(one.cosine for one in found.values()),
        "max_abs_turned": max(float(np.abs(one.turned - 1).max()) for one in found.values()),
        "by_problem": {
            name: {
                "ratios": _round(one.ratios), "turned": _round(one.turned), "cosine": round(one.cosine, 6),
                "sd": _round(one.sd),
            }
            for name, one in found.items()
        },
    }


def _drawn(problem: Problem, count: int) -> dict[str, object]:
    """One update on so many drawn trees, in standard errors from the true gradient."""
    table, rng = Table(problem), np.random.default_rng(0)
    trees = [drawn_tree(problem, table, rng) for _ in range(count)]
    found = gradient(trees, table, TreePg(), aggregation=SeqSumConst(constant=float(count)), loss=PpoClip())
    exact = measured(TreePg(), problem)
    errors = (found - exact.true) / (exact.sd / count**0.5)
    return {"trees": count, "ratios": _round(found / exact.true), "errors": _round(errors)}


def _round(column: Sequence[float] | Column) -> list[float]:
    return [round(float(x), 4) for x in column]
