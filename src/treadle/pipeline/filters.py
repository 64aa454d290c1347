"""Filters: which generated groups are worth an update. Each is a small class that names its reason.

They read the raw reward, before any credit: a group that is dropped enters no baseline, no loss and no denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.agents.limits import Rewards
from treadle.trajectory.group import Group


class Filter(Protocol):
    """Looks at one generated group."""

    def __call__(self, group: Group) -> str | None:
        """Why the group is dropped; None to keep it."""
        ...


LOST = ("failed", "singleton", "min_valid")
"""Reasons which say that too many rollouts of a group failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughValid:
    """Drops groups in which too many rollouts failed. Those that did train are counted, failures never vote."""

    group_size: int
    min_valid: float
    """Share of the group that must be valid."""
    min_rollouts: int
    """What the credit rule needs: 2 where siblings are compared."""

    def __call__(self, group: Group) -> str | None:
        """One of `LOST`, or None."""
        valid = len(group.valid)
        if valid == 0:
            return "failed"
        if valid < self.min_rollouts:
            return "singleton"
        if valid < math.ceil(self.min_valid * self.group_size - 1e-9):
            return "min_valid"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Drops groups whose valid rollouts all have the same raw reward: nothing to compare."""

    rewards: Rewards

    def __call__(self, group: Group) -> str | None:
        """`zero_variance` or None."""
        values = compared(group, self.rewards)
        return "zero_variance" if max(values) - min(values) < 1e-9 else None


def compared(group: Group, rewards: Rewards) -> list[float]:
    """What valid rollouts are compared by: their raw rewards, or their sums when a score lacks the main part."""
    valid = group.valid
    raw = [value for value in map(rewards.raw, valid) if value is not None]
    return raw if len(raw) == len(valid) else [r.reward for r in valid if r.reward is not None]


def first_reason(filters: Sequence[Filter], group: Group) -> str | None:
    """The first filter's reason to drop the group; None when all keep it."""
    for one in filters:
        reason = one(group)
        if reason is not None:
            return reason
    return None
