"""What one batch looked like, and how fast the run goes: the numbers of `update.done`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treadle.agents.limits import Rewards
from treadle.agents.stages import STAGES, Window
from treadle.core.events import Value
from treadle.core.outcome import Status
from treadle.pipeline.board import Entry, State
from treadle.trajectory.group import Group

HELD = ("snapshots_held", "snapshot_bytes")
"""What is held at a time, by one group."""
RECENT = 10
"""Updates whose pace the remaining time is estimated from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Counts and means over every rollout of a batch, dropped groups included: what the policy did."""

    groups: int
    """Groups that trained."""
    dropped: int
    reasons: Mapping[str, int]
    """Why groups were dropped, and how many."""
    masked: Mapping[str, int]
    """Why rollouts were left out of training, and how many; those of dropped groups included."""
    skipped_tasks: int
    """Tasks that the curriculum passed over for the batch's own."""
    rollouts: int
    """Valid ones."""
    reward_mean: float | None
    reward_std: float | None
    solved_share: float | None
    turns_mean: float | None
    tokens_mean: float | None
    truncated_share: float | None
    tokens_sampled: int
    """Of all rollouts, failed ones and probes included, and of looks."""
    branching: Mapping[str, Value]
    """What branching did, summed over the groups; of what is held at a time the most. Empty where nothing branches."""

    @classmethod
    def of(
        cls, batch: Sequence[Entry], rewards: Rewards, *,
        branching: Callable[[Group], Mapping[str, Value]] = lambda group: {},
    ) -> BatchReport:
        """Read a batch. `branching` knows what that did in a group."""
        trees = total([branching(entry.group) for entry in batch])
        raw, turns, tokens = [], [], []
        solved = truncated = 0
        for entry in batch:
            for rollout in entry.group.valid:
                assert rollout.outcome is not None
                value = rewards.raw(rollout)
                raw += [] if value is None else [value]
                solved += rewards.solved(rollout)
                truncated += rollout.outcome.status is Status.TRUNCATED
                actions = entry.group.actions(rollout.id)
                turns.append(len(actions))
                tokens.append(sum(map(len, actions)))
        n = len(turns)
        return cls(
            groups=sum(entry.state is State.TRAINED for entry in batch),
            dropped=sum(entry.state is State.DROPPED for entry in batch),
            reasons=Counter(entry.reason for entry in batch if entry.state is State.DROPPED),
            masked=Counter(reason for entry in batch for reason in entry.masked.values()),
            skipped_tasks=sum(entry.skipped for entry in batch), rollouts=n,
            reward_mean=statistics.fmean(raw) if raw else None, reward_std=statistics.pstdev(raw) if raw else None,
            solved_share=solved / n if n else None, turns_mean=sum(turns) / n if n else None,
            tokens_mean=sum(tokens) / n if n else None, truncated_share=truncated / n if n else None,
            tokens_sampled=sum(len(s) for entry in batch for s in entry.group.segments.values() if s.versions)
            + int(trees.get("look_tokens") or 0),
            branching=trees,
        )

    def short(self) -> dict[str, Value]:
        """What a skipped update still says."""
        return {
            "dropped": self.dropped, "skipped_tasks": self.skipped_tasks, "solved_share": self.solved_share,
            "reward_mean": self.reward_mean, "tokens_sampled": self.tokens_sampled,
            **counts("dropped", self.reasons), **counts("masked", self.masked),
            **{f"branching.{name}": value for name, value in self.branching.items()},
        }

    def long(self) -> dict[str, Value]:
        """Everything."""
        return {
            **self.short(), "groups": self.groups, "rollouts": self.rollouts, "reward_std": self.reward_std,
            "turns_mean": self.turns_mean, "tokens_mean": self.tokens_mean, "truncated_share": self.truncated_share,
        }


def total(groups: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """What branching did in several groups: sums, and of what is held at a time the most."""
    out: dict[str, Value] = {}
    for name, value in (item for facts in groups for item in facts.items()):
        held, found = out.get(name), value if isinstance(value, int) else 0
        before = held if isinstance(held, int) else 0
        out[name] = max(before, found) if name in HELD else before + found
    return out


def counts(what: str, reasons: Mapping[str, int]) -> dict[str, Value]:
    """How many for each reason, as `WHAT.REASON`, in the order of the names."""
    return {f"{what}.{reason}": count for reason, count in sorted(reasons.items())}


class Pace:
    """Seconds per update, and what follows from them."""

    def __init__(self, updates: int, *, tokens: int | None = None) -> None:
        """Of a run that ends after so many updates, or so many sampled tokens."""
        self._updates, self._tokens = updates, tokens
        self._seconds: list[float] = []
        self.spent = 0
        """Tokens that were sampled for all updates so far."""

    def skipped(self, seconds: float) -> None:
        """An empty batch took this long."""
        self._seconds.append(seconds)

    def values(self, number: int, window: Window) -> dict[str, Value]:
        """Rates, idle shares and the time left after update `number`, from the window since the last one."""
        self._seconds.append(window.seconds)
        tokens = window.counts.get("tokens", 0.0)
        recent = self._seconds[-RECENT:]
        return {
            "seconds_s": window.seconds, "eta_s": sum(recent) / len(recent) * self._left(number),
            "tokens_generated": int(tokens), "tokens_per_s": tokens / window.seconds if window.seconds > 0 else 0.0,
            "failed": int(window.counts.get("failed", 0)), "retries": int(window.counts.get("retries", 0)),
            "regime": window.regime, **{f"{stage}_idle_share": window.idle_share(stage) for stage in STAGES},
        }

    def _left(self, number: int) -> int:
        """Updates after this one; where tokens end the run, as many as they pay for, at their mean so far."""
        left = self._updates - number
        if self._tokens is None or not self.spent:
            return left
        return min(left, round(max(self._tokens - self.spent, 0) * number / self.spent))
