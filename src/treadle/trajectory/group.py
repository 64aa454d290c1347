"""Groups while they grow: one admission ticket, its shared prompt, its rollouts.

`Group` is the only door through which segments and rewards enter the forest, so the invariants are held here:
parents come before children, a rollout that ended takes nothing more, a reward that the world attaches to an
observation moves to the action before it, and the prompt of a group is stored once, not once per rollout.

Every append is told to `sink` (the store) in the order of appending: whatever prefix of that order survives a crash
is a forest without orphans.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from treadle.core.outcome import Outcome
from treadle.core.ports import Completion, Ids
from treadle.trajectory.segment import Author, Segment, Span, Why


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """What makes a group: one (task, env seed) admitted once."""

    id: str
    ticket: int
    """Admission number, counted from 0 over the whole run."""
    task: str
    """Task id."""
    family: str
    """Task family, for estimates and reports; empty when the task has none."""
    split: str
    """`train` or `heldout`."""
    admitted_version: int
    """Policy version at admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRecord:
    """One reward on one action. Append-only; known later than the tokens."""

    rollout: str
    segment: str
    name: str
    """Name of the reward part, such as `correct`."""
    value: float
    train: bool = True
    """False for parts that are reported but not summed into the rollout's reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One play of one task, as far as it got."""

    id: str
    group: str
    index: int
    """Place in the group, 0..n-1."""
    attempt: int = 0
    forked_from: str | None = None
    """Id of the rollout whose start it shares; None when it was played from the beginning."""
    forked_at: str | None = None
    """Last segment that it shares with that one; None unless forked."""
    probe: bool = False
    """Played to see what a state is worth: it trains nothing and votes in no baseline of rollouts."""
    leaves: tuple[str, ...] = ()
    """Last segment of each context, in time order; the last one is the rollout's end in time."""
    outcome: Outcome | None = None
    """None while it runs."""
    reward: float | None = None
    """Sum of the parts that train; None means not scored, which is not 0."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """All reward parts by name."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent per stage: generate, env, score."""

    @property
    def trains(self) -> bool:
        """Whether it may vote in a baseline and enter the loss (invariant 5); never when it did nothing."""
        return not self.probe and self.counts

    @property
    def counts(self) -> bool:
        """Whether it ended, did something of its own and was scored: what it found is a fact about the policy."""
        acted = bool(self.leaves) and self.leaves[-1] != self.forked_at
        return self.outcome is not None and self.outcome.trains and self.reward is not None and acted


class Sink(Protocol):
    """Where appends go. Must not block and must keep the order."""

    def segment(self, segment: Segment) -> None:
        """Take one segment."""

    def reward(self, record: RewardRecord) -> None:
        """Take one reward record."""

    def rollout(self, rollout: Rollout) -> None:
        """Take the newest state of a rollout."""

    def group(self, key: GroupKey) -> None:
        """Take a new group."""


class NoSink:
    """Keeps nothing."""

    def segment(self, segment: Segment) -> None:
        """Take one segment."""

    def reward(self, record: RewardRecord) -> None:
        """Take one reward record."""

    def rollout(self, rollout: Rollout) -> None:
        """Take the newest state of a rollout."""

    def group(self, key: GroupKey) -> None:
        """Take a new group."""


class Group:
    """A growing group. Not thread-safe: the controller's event loop owns it."""

    def __init__(self, key: GroupKey, *, sink: Sink | None = None) -> None:
        self.key = key
        self.segments: dict[str, Segment] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.records: list[RewardRecord] = []
        self._sink: Sink = sink or NoSink()
        self._last, self._number = "", -1
        self._sink.group(key)

    def onward(self, sink: Sink) -> Group:
        """This group, read back from where `sink` leads: what it holds is known there, what is appended is told."""
        self._sink = sink
        return self

    def like(
        self, *, segments: Mapping[str, Segment] | None = None, rollouts: Mapping[str, Rollout] | None = None,
        records: Sequence[RewardRecord] | None = None,
    ) -> Group:
        """A copy with these parts in place of its own, which tells nobody. This group stays as it is."""
        made = Group(self.key)
        made.segments = dict(self.segments if segments is None else segments)
        made.rollouts = dict(self.rollouts if rollouts is None else rollouts)
        made.records = list(self.records if records is None else records)
        return made

    # -- growing -----------------------------------------------------------------------------------------------

    def prompt(self, ids: Ids) -> Segment:
        """The shared prompt, stored once; a second call with the same ids returns the same segment."""
        for segment in self.segments.values():
            if segment.rollout is None and np.array_equal(segment.ids, ids):
                return segment
        return self._append(
            Segment(
                id=self._next_id(), group=self.key.id, rollout=None, author=Author.ENV, ids=ids,
                parent=None, after=None, why=Why.PROMPT,
            )
        )

    def begin(self, index: int, *, attempt: int = 0) -> Rollout:
        """Start a rollout; attempts of one index are different rollouts."""
        rollout = Rollout(id=f"{self.key.id}.{index}.{attempt}", group=self.key.id, index=index, attempt=attempt)
        if rollout.id in self.rollouts:
            raise ValueError(f"rollout {rollout.id} was begun before")
        return self._put(rollout)

    def fork(self, rollout: str, index: int, *, at: Segment, attempt: int = 0, probe: bool = False) -> Rollout:
        """Start a rollout that shares another one's start up to `at`, its own next action excluded.

        What was paid so far for what they share is the new one's too. Raises ValueError when `at` is not on the way of
        that rollout, or no segment of the world.
        """
        made = Rollout(
            id=f"{self.key.id}.{index}.{attempt}", group=self.key.id, index=index, attempt=attempt,
            forked_from=rollout, forked_at=at.id, probe=probe, leaves=self._leaves_up_to(rollout, at),
        )
        if made.id in self.rollouts:
            raise ValueError(f"rollout {made.id} was begun before")
        return self._put(made)

    def sampled(
        self, rollout: str, completion: Completion, *, after: Segment, turn: int,
        spans: tuple[Span, ...] = (), state_key: str | None = None,
    ) -> Segment:
        """Append what the policy sampled, exactly as sampled."""
        held, why = self._growing(rollout, after, after, Why.TURN)
        return self._grown(held, Segment(
            id=self._next_id(), group=self.key.id, rollout=rollout, author=Author.POLICY, ids=completion.ids,
            parent=after.id, after=after.id, turn=turn, logprobs=completion.logprobs, entropy=completion.entropy,
            versions=completion.versions, kv_version=completion.kv_version, why=why, spans=spans, state_key=state_key,
        ))

    def demonstrated(
        self, rollout: str, ids: Ids, *, after: Segment, turn: int, spans: tuple[Span, ...] = ()
    ) -> Segment:
        """Append an action that a demonstrator wrote."""
        held, why = self._growing(rollout, after, after, Why.TURN)
        return self._grown(held, Segment(
            id=self._next_id(), group=self.key.id, rollout=rollout, author=Author.DEMO, ids=ids, parent=after.id,
            after=after.id, turn=turn, why=why, spans=spans,
        ))

    def observed(
        self, rollout: str, ids: Ids, *, after: Segment, turn: int, why: Why = Why.TURN,
        parent: Segment | None = None, tier: str = "real", snapshot: str | None = None,
    ) -> Segment:
        """Append what the world answered. `parent` differs from `after` only at a context break."""
        parent = parent or after
        held, why = self._growing(rollout, after, parent, why)
        return self._grown(held, Segment(
            id=self._next_id(), group=self.key.id, rollout=rollout, author=Author.ENV, ids=ids, parent=parent.id,
            after=after.id, turn=turn, why=why, tier=tier, snapshot=snapshot,
        ))

    def pay(
        self, rollout: str, name: str, value: float, *, on: Segment | None = None, train: bool = True
    ) -> RewardRecord:
        """Put a reward on an action. On an observation it moves to the action before it; default: the last action.

        Raises ValueError when no action precedes, the rollout has ended or the value is not a finite number.
        """
        if not math.isfinite(value):
            raise ValueError(f"rollout {rollout}: reward {name}={value}, expected a finite number")
        if (ended := self.rollouts[rollout].outcome) is not None:
            raise ValueError(f"rollout {rollout} ended as {ended.status} and takes no more reward")
        place: Segment | None = on if on is not None else self._end(rollout)
        while place is not None and not place.is_action:
            place = self.segments[place.after] if place.after is not None else None
        if place is None:
            raise ValueError(f"rollout {rollout}: reward {name}={value} has no action before it")
        record = RewardRecord(rollout=rollout, segment=place.id, name=name, value=float(value), train=train)
        self.records.append(record)
        self._sink.reward(record)
        return record

    def end(
        self, rollout: str, outcome: Outcome, *, seconds: Mapping[str, float] | None = None, scored: bool = True
    ) -> Rollout:
        """Close a rollout. Its reward is the sum of its parts; None when the outcome is not scored."""
        held = self.rollouts[rollout]
        if held.outcome is not None:
            raise ValueError(f"rollout {rollout} ended before, as {held.outcome.status}")
        parts: dict[str, float] = {}
        total = 0.0
        shared = self._shared(held)
        for record in self.records:
            if record.rollout == rollout or record.segment in shared:
                parts[record.name] = parts.get(record.name, 0.0) + record.value
                total += record.value if record.train else 0.0
        counted = scored and outcome.scored
        return self._put(
            replace(
                held, outcome=outcome, reward=total if counted else None,
                rewards=parts if counted else {}, seconds=dict(seconds or {}),
            )
        )

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def valid(self) -> list[Rollout]:
        """Rollouts that may train, by index."""
        return sorted((r for r in self.rollouts.values() if r.trains), key=lambda r: (r.index, r.attempt))

    def path(self, leaf: str) -> list[Segment]:
        """Context path root .. leaf."""
        out: list[Segment] = []
        at: str | None = leaf
        while at is not None:
            out.append(self.segments[at])
            at = self.segments[at].parent
        return out[::-1]

    def actions(self, rollout: str) -> list[Segment]:
        """What was done in a rollout, in time: its turns, across context breaks."""
        out: list[Segment] = []
        at = self._end(rollout)
        while at is not None:
            if at.is_action:
                out.append(at)
            at = self.segments[at.after] if at.after is not None else None
        return out[::-1]

    def rewards_within(self, segments: Collection[str]) -> dict[str, float]:
        """Training reward by segment, for those among `segments` that have any.

        What was paid for a shared start stays its own, whatever became of the rollout that first went there.
        """
        out: dict[str, float] = {}
        for record in self.records:
            if record.train and record.segment in segments:
                out[record.segment] = out.get(record.segment, 0.0) + record.value
        return out

    @property
    def probed(self) -> dict[str, float]:
        """Mean return of the probes from each segment that some began at, counted from there on."""
        found: dict[str, list[float]] = {}
        for rollout in self.rollouts.values():
            if rollout.probe and rollout.counts:
                assert rollout.forked_at is not None
                paid = [r.value for r in self.records if r.train and r.rollout == rollout.id]
                found.setdefault(rollout.forked_at, []).append(math.fsum(paid))
        return {segment: math.fsum(returns) / len(returns) for segment, returns in found.items()}

    def context_ids(self, leaf: str) -> Ids:
        """Exactly the ids that the model saw up to and including `leaf` (invariant 1)."""
        return np.concatenate([segment.ids for segment in self.path(leaf)])

    @property
    def oldest_version(self) -> int | None:
        """Oldest version among everything that would train; None when nothing was sampled."""
        found = [segment.oldest_version for segment in self.training]
        return min((v for v in found if v is not None), default=None)

    @property
    def training(self) -> list[Segment]:
        """What the valid rollouts made, and the starts that they share with others, whatever became of those."""
        valid = self.valid
        made = {rollout.id for rollout in valid}
        shared = set[str]().union(*(self._shared(rollout) for rollout in valid))
        return [s for s in self.segments.values() if s.rollout in made or s.id in shared]

    # -- inside ------------------------------------------------------------------------------------------------

    def _next_id(self) -> str:
        last = next(reversed(self.segments), "")  # numbers may be missing where a rollout is played again
        if last != self._last:  # it was not made here
            self._number = int(last.rpartition(":")[2]) if last else -1
        self._number += 1
        self._last = f"{self.key.id}:{self._number:05d}"
        return self._last

    def _end(self, rollout: str) -> Segment | None:
        leaves = self.rollouts[rollout].leaves
        return self.segments[leaves[-1]] if leaves else None

    def _leaves_up_to(self, rollout: str, at: Segment) -> tuple[str, ...]:
        """The ends of the contexts of a rollout as they were when `at` was its last segment."""
        way: list[Segment] = []
        place = self._end(rollout)
        while place is not None and place is not at:
            way.append(place)
            place = self.segments[place.after] if place.after is not None else None
        begun = place is None and not way and at.rollout is None  # it has done nothing yet: its prompt is all there is
        if (place is None and not begun) or self.segments.get(at.id) is not at:
            raise ValueError(f"rollout {rollout}: cannot fork at {at.id}, which is not on its way")
        if at.is_action:
            raise ValueError(f"rollout {rollout}: cannot fork at {at.id}, an action: the world has not answered yet")
        breaks = sum(segment.why.breaks for segment in way)
        kept = self.rollouts[rollout].leaves
        return (*kept[: len(kept) - 1 - breaks], at.id) if kept else (at.id,)

    def _shared(self, rollout: Rollout) -> set[str]:
        """Segments that a forked rollout has in common with the one that it came from."""
        out: set[str] = set()
        at = rollout.forked_at
        while at is not None:
            out.add(at)
            at = self.segments[at].after
        return out

    def _growing(self, rollout: str, after: Segment, parent: Segment, why: Why) -> tuple[Rollout, Why]:
        """The rollout that may take a segment there, and why that starts where it does."""
        held = self.rollouts[rollout]
        if held.outcome is not None:
            raise ValueError(f"rollout {rollout} ended as {held.outcome.status} and takes no more segments")
        for name, segment in (("after", after),) if parent is after else (("after", after), ("parent", parent)):
            if self.segments.get(segment.id) is not segment:
                raise ValueError(f"rollout {rollout}: {name}={segment.id} is not a segment of group {self.key.id}")
        return held, Why.FORK if held.forked_at == after.id else why

    def _grown(self, held: Rollout, made: Segment) -> Segment:
        """Append what this rollout made."""
        self._append(made)
        kept = held.leaves if made.why.breaks else held.leaves[:-1]
        self._put(  # written out, as every segment does it: what takes segments has no end and no reward yet
            Rollout(
                id=held.id, group=held.group, index=held.index, attempt=held.attempt, leaves=(*kept, made.id),
                forked_from=held.forked_from, forked_at=held.forked_at, probe=held.probe, rewards=held.rewards,
                seconds=held.seconds,
            )
        )
        return made

    def _append(self, segment: Segment) -> Segment:
        self.segments[segment.id] = segment
        self._sink.segment(segment)
        return segment

    def _put(self, rollout: Rollout) -> Rollout:
        self.rollouts[rollout.id] = rollout
        self._sink.rollout(rollout)
        return rollout
