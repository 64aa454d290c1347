"""Conditions: what a credit rule needs of the run around it, beyond the columns of a forest.

Most rules judge any forest. A rule whose guarantee holds only for some runs says so in two class attributes, and a
recipe whose parts break one is refused, naming the keys:

    constant_denominator     the loss is divided by the same number in every update
    fanout_before_children   how often a tree forks at a node was decided before the node's children were sampled

A third one says which credit it gives, so that a recipe that asks too much of segments that rollouts share is refused
before anything is played. Without it the first update tells.

    gives                    what has an advantage of its own: `rollout`, `segment`, `weighed segment` or `token`
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from treadle.algorithms.aggregation import AGGREGATIONS, Aggregation
from treadle.algorithms.credit import CreditRule, Gives, refusal
from treadle.algorithms.shared import Shared


@runtime_checkable
class Conditional(Protocol):
    """A rule that does not fit every run."""

    name: ClassVar[str]
    constant_denominator: ClassVar[bool]
    fanout_before_children: ClassVar[bool]


@runtime_checkable
class Telling(Protocol):
    """A rule that says which credit it gives."""

    name: ClassVar[str]
    gives: ClassVar[Gives]


def unshared(rule: CreditRule, shared: Shared) -> str | None:
    """Why a rule cannot have this choice for shared segments, as a line; None when it can, or does not tell."""
    return refusal(shared, rule.gives, rule=f"algorithm.rule={rule.name}") if isinstance(rule, Telling) else None


def unmet(
    rule: CreditRule, *, aggregation: Aggregation, branching: str = "none", declared: bool = True
) -> str | None:
    """The first condition of a rule that the run breaks, as a line; None when it fits.

    `branching` names the recipe's branching policy, `declared` is what that says of `fanout_before_children`.
    """
    if not isinstance(rule, Conditional):
        return None
    if rule.constant_denominator and not aggregation.constant_denominator:
        fixed = " or ".join(name for name, kind in AGGREGATIONS.items() if kind.constant_denominator)
        return (
            f"algorithm.aggregation={aggregation.name} contradicts algorithm.rule={rule.name}: its denominator depends "
            f"on what was sampled, which turns the gradient; set algorithm.aggregation={fixed} and its constant"
        )
    if rule.fanout_before_children and not declared:
        return (
            f"branching={branching} contradicts algorithm.rule={rule.name}: it forks where it has seen the children, "
            "which turns the gradient; set a branching policy that decides before (it declares "
            "fanout_before_children), or another rule"
        )
    return None
