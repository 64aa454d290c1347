"""Reward transforms: what a group's rewards are replaced with just before credit.

The placebo arm of an experiment keeps everything as it is, filters and statistics included, except that the rewards
of a group are dealt out to its rollouts at random. A method whose gain survives that has not learned from feedback.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from treadle.core.seeds import Stream
from treadle.trajectory.group import Group, RewardRecord


class RewardTransform(Protocol):
    """Gives a group with other rewards; the one it was given stays as it is."""

    def __call__(self, group: Group) -> Group:
        """The group to take credit from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteRewards:
    """Deals the rewards of a group's valid rollouts out to them in random order."""

    seed: Stream

    def __call__(self, group: Group) -> Group:
        """The same segments and outcomes; each rollout's reward, as one part on its last action, is another's."""
        valid = group.valid
        totals = [rollout.reward for rollout in valid]
        order = list(range(len(valid)))
        self.seed.at("placebo", group.key.ticket).python().shuffle(order)
        rollouts, records = dict(group.rollouts), list[RewardRecord]()
        for rollout, source in zip(valid, order, strict=True):
            value = totals[source]
            assert value is not None
            rollouts[rollout.id] = replace(rollout, reward=value, rewards={"placebo": value})
            last = group.actions(rollout.id)[-1].id
            records.append(RewardRecord(rollout=rollout.id, segment=last, name="placebo", value=value))
        return group.like(rollouts=rollouts, records=records)
