"""Reward transforms: what a group's rewards are replaced with just before credit.

The placebo arm of an experiment keeps everything as it is, filters and statistics included, except that the rewards
of a group are dealt out to its rollouts at random, and what its probes found to its probes. A method whose gain
survives that has not learned from feedback.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from treadle.core.seeds import Stream
from treadle.trajectory.group import Group, RewardRecord, Rollout


class RewardTransform(Protocol):
    """Gives a group with other rewards; the one it was given stays as it is."""

    def __call__(self, group: Group) -> Group:
        """The group to take credit from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteRewards:
    """Deals the rewards of a group's valid rollouts out to them in random order; what its probes found alike."""

    seed: Stream

    def __call__(self, group: Group) -> Group:
        """The same segments and outcomes; each rollout's reward, as one part on its last action, is another's."""
        valid, stream = group.valid, self.seed.at("placebo", group.key.ticket)
        probes = [r for r in group.rollouts.values() if r.probe and r.counts]
        probes.sort(key=lambda r: (r.index, r.attempt))
        rollouts, records = dict(group.rollouts), list[RewardRecord]()
        for rollout, value in zip(valid, _dealt([_whole(r) for r in valid], stream), strict=True):
            rollouts[rollout.id] = replace(rollout, reward=value, rewards={"placebo": value})
            records.append(_paid(group, rollout, value))
        found = [_own(group, rollout) for rollout in probes]
        for rollout, value in zip(probes, _dealt(found, stream.at("probes")), strict=True):
            records.append(_paid(group, rollout, value))
        return group.like(rollouts=rollouts, records=records)


def _dealt(values: Sequence[float], stream: Stream) -> list[float]:
    order = list(range(len(values)))
    stream.python().shuffle(order)
    return [values[source] for source in order]


def _whole(rollout: Rollout) -> float:
    assert rollout.reward is not None
    return rollout.reward


def _own(group: Group, probe: Rollout) -> float:
    """What was paid from where it began on."""
    return math.fsum(record.value for record in group.records if record.train and record.rollout == probe.id)


def _paid(group: Group, rollout: Rollout, value: float) -> RewardRecord:
    """On its last action; where all of them are mere context, because they are too old, where it ends."""
    acted = group.actions(rollout.id)
    segment = acted[-1].id if acted else rollout.leaves[-1]
    return RewardRecord(rollout=rollout.id, segment=segment, name="placebo", value=value)
