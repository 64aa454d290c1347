"""Credit: from a forest to three numbers per segment.

A credit rule is a pure function `Forest -> PathCredit | NodeCredit | TokenCredit`. All collapse to the same three
columns,

    A+ = sum_p w_p max(A_p, 0)      A- = sum_p w_p min(A_p, 0)      mass = sum_p w_p

over the rollouts p that run through a segment, `w_p` being the aggregation's weight of a rollout: this is `path_sum`,
what a segment that several rollouts share gets unless a recipe says otherwise (`shared.py`). A loss that is
positively homogeneous in the advantage for each sign (PPO clip, dual clip, any per-token importance weight) needs
nothing else, so one packed pass over a tree is exactly the sum over all its paths.

Rules scan time, never context, and count rollouts, never rows: splitting an observation, adding a context break or
cutting an action in two changes no number (invariants 3 and 4). Rollouts that do not train are not in the forest
(invariant 5). Rows that no policy and no demonstrator wrote collapse to 0 (invariant 2).
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from treadle.algorithms.aggregation import Aggregation
from treadle.algorithms.shared import PathSum, Shared
from treadle.core.errors import one_line
from treadle.trajectory.forest import Column, Forest

Scope = Literal["group", "batch"]
Gives = Literal["rollout", "segment", "weighed segment", "token"]
"""What has an advantage of its own; `weighed segment`: and a weight of its own."""
PATH_SUM = PathSum()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collapsed:
    """Three columns of a forest, one number per row [N] or per token [T]; 0 on what is not an action."""

    pos: Column
    """A+: weighted sum of the positive advantages of the rollouts through the row, >= 0."""
    neg: Column
    """A-: weighted sum of the negative advantages, <= 0."""
    mass: Column
    """Weighted number of rollouts that train through the row, >= 0."""
    returns: Column | None = None
    """[T] what a value function should have said before each token; NaN where it learns nothing. None has none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCredit:
    """One advantage per rollout: flat algorithms, exact on a tree."""

    gives: ClassVar[Gives] = "rollout"

    advantage: Column
    """[R] in the order of `forest.rollouts`."""

    def collapse(self, forest: Forest, weight: Column, shared: Shared = PATH_SUM) -> Collapsed:
        """What the rollouts through each row make of it; `weight` is [R], >= 0."""
        _expect("advantage", self.advantage, len(forest.rollouts))
        _expect("weight", weight, len(forest.rollouts))

        def through(per_rollout: Column) -> Column:
            return np.where(forest.action, shared.through(forest, per_rollout), 0.0)

        return Collapsed(
            pos=through(weight * np.maximum(self.advantage, 0.0)),
            neg=through(weight * np.minimum(self.advantage, 0.0)),
            mass=through(weight),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCredit:
    """One advantage per segment: step, turn and tree algorithms."""

    advantage: Column
    """[N]; values on rows that are not actions are ignored."""
    weight: Column | None = None
    """[N] how much each segment counts, >= 0, whoever shares it; None leaves it to `shared`."""

    @property
    def gives(self) -> Gives:
        """Whether it weighs its segments."""
        return "segment" if self.weight is None else "weighed segment"

    def collapse(self, forest: Forest, weight: Column, shared: Shared = PATH_SUM) -> Collapsed:
        """The advantage times what `shared` makes of the weights [R] of the rollouts through the segment.

        Where the rule weighs segments itself, its weight times the mean of theirs. Raises ValueError when `shared`
        cannot be had with this credit.
        """
        _expect("advantage", self.advantage, len(forest))
        _expect("weight", weight, len(forest.rollouts))
        _refuse(shared, self.gives)
        if self.weight is None:
            through = shared.through(forest, weight)
        else:
            _expect("node weight", self.weight, len(forest))
            through = self.weight * forest.leaf_mean(weight)
        return _collapsed(self.advantage, np.where(forest.action, through, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCredit:
    """One advantage per token: rules with a value function or a penalty on every token."""

    gives: ClassVar[Gives] = "token"

    advantage: Column
    """[T]; values on tokens that are not of an action are ignored."""
    returns: Column | None = None
    """[T] what a value function should have said before each token; NaN where it learns nothing. None has none."""

    def collapse(self, forest: Forest, weight: Column, shared: Shared = PATH_SUM) -> Collapsed:
        """The advantage times what `shared` makes of the weights [R] of the rollouts through the token.

        Raises ValueError when `shared` cannot be had with this credit.
        """
        _expect("advantage", self.advantage, forest.tokens)
        _expect("weight", weight, len(forest.rollouts))
        _refuse(shared, self.gives)
        mass = forest.spread(np.where(forest.action, shared.through(forest, weight), 0.0))
        return replace(_collapsed(np.where(mass > 0, self.advantage, 0.0), mass), returns=self.returns)


Credit: TypeAlias = PathCredit | NodeCredit | TokenCredit


class CreditRule(Protocol):
    """A pure function of a forest.

    A rule raises ValueError for a forest that it cannot judge (a missing column); it never drops rollouts itself. What
    more it may say of itself stands in `conditions.py`.
    """

    name: ClassVar[str]
    """Registry name."""
    scope: ClassVar[Scope]
    """`group` when credit is the same whatever other groups are in the update, else `batch`.

    An update has its whole batch, so training need not know. `treadle credit` tells it to whoever reads one group's
    tree, and `check_credit` holds a rule to it.
    """
    min_rollouts: ClassVar[int]
    """A group with fewer valid rollouts carries no signal and is dropped, reason `singleton`."""

    @property
    def needs(self) -> frozenset[str]:
        """Notes that must be on the forest (`value`, `ref`, `prox`, `answer_prob`, `entropy`); empty when rewards do.

        A class attribute for all rules whose settings change nothing about it.
        """
        ...

    def __call__(self, forest: Forest) -> Credit:
        """Credit of every rollout, segment or token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factors:
    """What a first pass multiplies the credit of each rollout by: [R] each, >= 0."""

    pos: Column
    neg: Column


def assign(
    forest: Forest, rule: CreditRule, aggregation: Aggregation, *, shared: Shared = PATH_SUM,
    factors: Factors | None = None,
) -> tuple[Collapsed, float]:
    """Run a rule and an aggregation over the forest of one whole update: collapsed columns and the denominator.

    Masses and denominator are those of all rollouts, whatever `factors` say. Raises ValueError, in one line that names
    the rule, for a forest that it cannot judge, a `shared` that cannot be had with its credit, whatever else the rule
    raises, and an advantage that is no finite number.
    """
    weight, denominator = aggregation.weights(forest)
    try:
        credit = _checked(rule(forest))
        found = credit.collapse(forest, weight, shared)
        if factors is not None:
            pos = credit.collapse(forest, weight * factors.pos, shared).pos
            neg = credit.collapse(forest, weight * factors.neg, shared).neg
            found = replace(found, pos=pos, neg=neg)
    except Exception as error:  # the border to a rule of the user's own, which may raise anything
        raise ValueError(_said(rule, error)) from error
    counts = found.mass > 0
    if wrong := int((counts & ~np.isfinite(found.pos + found.neg)).sum()):
        what = "actions" if len(counts) == len(forest) else "tokens"
        raise ValueError(
            f"algorithm.rule={rule.name}: got no finite advantage on {wrong} of {int(counts.sum())} {what}, expected "
            "one on each; mend the rule"
        )
    return found, denominator


def _checked(credit: object) -> Credit:
    """What a rule gave. Raises ValueError when that is no credit."""
    if not isinstance(credit, PathCredit | NodeCredit | TokenCredit):
        raise ValueError(f"got {type(credit).__name__}, expected PathCredit, NodeCredit or TokenCredit")
    return credit


def _said(rule: CreditRule, error: Exception) -> str:
    """What went wrong in a rule, with its name and, where it did not say so itself, the place."""
    said = one_line(error)
    if isinstance(error, ValueError) and said.startswith("algorithm."):
        return said
    frames = traceback.extract_tb(error.__traceback__)[1:2]
    place = "".join(f" ({Path(f.filename).name}, line {f.lineno})" for f in frames if f.name == "__call__")
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"algorithm.rule={rule.name}: {kind}{said}{place}"


def refusal(shared: Shared, gives: Gives, *, rule: str = "a rule") -> str | None:
    """Why this choice cannot be had with such credit, in one line; None when it can. `rule` says whose credit it is."""
    if gives == "weighed segment" and shared.overrules:
        return (
            f"algorithm.shared={shared.name}: got {rule} with a weight of its own for each segment, expected a rule "
            "that leaves open how much they count; set algorithm.shared=path_sum"
        )
    if gives != "rollout" and shared.chooses:
        return (
            f"algorithm.shared={shared.name}: got {rule} with one advantage per {gives}, expected a rule with one per "
            "rollout to choose from; set algorithm.shared=mean"
        )
    return None


def _refuse(shared: Shared, gives: Gives) -> None:
    """Raise ValueError when a credit cannot have this."""
    if (line := refusal(shared, gives)) is not None:
        raise ValueError(line)


def _collapsed(advantage: Column, mass: Column) -> Collapsed:
    return Collapsed(pos=mass * np.maximum(advantage, 0.0), neg=mass * np.minimum(advantage, 0.0), mass=mass)


def _expect(what: str, column: Column, length: int) -> None:
    if column.shape != (length,):
        raise ValueError(f"{what}: got shape {column.shape}, expected ({length},)")
