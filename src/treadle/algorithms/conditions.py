"""Conditions: what a credit rule needs of the run around it, beyond the columns of a forest.

Most rules judge any forest. A rule whose guarantee holds only for some runs says so in two class attributes, and a
recipe whose parts break one is refused, naming the keys:

    constant_denominator     the loss is divided by the same number in every update
    fanout_before_children   how often a tree forks at a node was decided before the node's children were sampled
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from treadle.algorithms.aggregation import AGGREGATIONS, Aggregation
from treadle.algorithms.credit import CreditRule


@runtime_checkable
class Conditional(Protocol):
    """A rule that does not fit every run."""

    name: ClassVar[str]
    constant_denominator: ClassVar[bool]
    fanout_before_children: ClassVar[bool]


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
