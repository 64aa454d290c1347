"""Filters: what of a generated group is worth an update. Each is a small class that names its reason.

They read outcomes, tokens and raw rewards, before any credit, one after the other:

    group -> masks: some of its rollouts are left out -> verdict: keep what is left, or drop the group -> next filter

What is left out enters no baseline, no loss and no denominator, as if it had never been played. The group itself stays
as it is: statistics and the curriculum count everything that the policy did. Every drop is counted under its reason.

A filter is a pure function of the group, so that a group that is judged again after an interruption comes to the same.
Which ones a recipe wants are plans (`pipeline.filters`, by name). Those that mask go first, so that groups are compared
without what they leave out. Whether enough rollouts are valid is asked before all of them, and always.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from treadle.agents.limits import Rewards
from treadle.trajectory.group import Group

LOST = ("failed", "singleton", "min_valid")
"""Reasons which say that too many rollouts of a group failed."""


class Filter(Protocol):
    """Looks at one generated group. Pure: the same group gives the same answers."""

    def masks(self, group: Group) -> Mapping[str, str]:
        """Valid rollouts that are left out: id to reason."""
        ...

    def __call__(self, group: Group) -> str | None:
        """Why the group, without what was left out, is dropped; None to keep it."""
        ...


class FilterPlan(Protocol):
    """What a recipe says about one filter."""

    name: ClassVar[str]
    masking: ClassVar[bool]
    """Whether it leaves out single rollouts."""

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """The filter for a credit rule that needs so many rollouts; None where it has nothing to do."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the filters make of a group."""

    group: Group
    """What trains: the group, or a view of it without what was left out."""
    reason: str | None = None
    """Why it is dropped; None when it trains."""
    masked: Mapping[str, str] = field(default_factory=dict)
    """Rollouts that were left out: id to reason."""


def judge(filters: Sequence[Filter], group: Group) -> Verdict:
    """Ask one filter after the other about what those before it left; the first that drops the group is the last."""
    masked: dict[str, str] = {}
    left = group
    for one in filters:
        out = one.masks(left)
        if out:
            masked |= out
            left = without(group, masked)
        reason = one(left)
        if reason is not None:
            return Verdict(group=left, reason=reason, masked=masked)
    return Verdict(group=left, masked=masked)


def without(group: Group, rollouts: Collection[str]) -> Group:
    """The group as if these rollouts had never been played. The group itself stays as it is."""
    return group.like(rollouts={name: rollout for name, rollout in group.rollouts.items() if name not in rollouts})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughValid:
    """Drops groups in which too many rollouts failed. Those that did train are counted, failures never vote."""

    group_size: int
    """Rollouts that a group begins with; forks, and rollouts in place of forks, come on top."""
    spare: int = 0
    """Rollouts beyond them that are started to be cancelled: they are no more that began."""
    min_valid: float
    """Share of all that began, probes not counted, that must be valid."""
    min_rollouts: int
    """What the credit rule needs: 2 where siblings are compared."""

    def masks(self, group: Group) -> Mapping[str, str]:
        """Nothing: failed rollouts do not train anyway."""
        return {}

    def __call__(self, group: Group) -> str | None:
        """One of `LOST`, or None."""
        valid = len(group.valid)
        if valid == 0:
            return "failed"
        if valid < self.min_rollouts:
            return "singleton"
        first = self.group_size + self.spare
        begun = self.group_size + len({r.index for r in group.rollouts.values() if r.index >= first and not r.probe})
        if valid < math.ceil(self.min_valid * begun - 1e-9):
            return "min_valid"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Drops groups whose valid rollouts all have the same raw reward: nothing to compare (2503.14476).

    Its bias: tasks that are always or never solved leave the average, so an update is a mean over tasks of middling
    difficulty, and the more of them are dropped the fewer groups an update has.
    """

    rewards: Rewards

    def masks(self, group: Group) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def __call__(self, group: Group) -> str | None:
        """`zero_variance` or None."""
        values = compared(group, self.rewards)
        return "zero_variance" if max(values) - min(values) < 1e-9 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEqualRewards:
    """Groups without anything to compare do not train."""

    name: ClassVar[str] = "zero_variance"
    masking: ClassVar[bool] = False

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """None for a credit rule that does not compare siblings."""
        return ZeroVariance(rewards=rewards) if min_rollouts > 1 else None


def compared(group: Group, rewards: Rewards) -> list[float]:
    """What valid rollouts are compared by: their raw rewards, or their sums when a score lacks the main part."""
    valid = group.valid
    raw = [value for value in map(rewards.raw, valid) if value is not None]
    return raw if len(raw) == len(valid) else [r.reward for r in valid if r.reward is not None]
