"""The forest: columns over any number of groups, parent before child.

Built from groups by `Forest.of`, which leaves out every segment that only failed or unscored rollouts pass through:
a rule never sees them, so they cannot vote in a baseline, enter a loss or weigh in a denominator (invariant 5).

Rows stand in the order of the rollouts' places in their groups, not of their appending: what is computed from a forest
does not depend on who finished first, nor on whether a group was interrupted and played on.

A row is a segment. Credit counts *rollouts*, *forks* or *state keys*, never rows (invariant 4): a rollout's end in
time is the row where `leaf` is true, and everything a rule averages is averaged over leaves or over time children.
Because a row may end several rollouts that share all of it (a fork that added nothing), `leaves[i]` counts them.

What is known later than the tokens (values, reference log-probs and the like) are `notes`: columns with one number per
token, put there by the learner. Probes, rollouts that only say what a state is worth, have no rows: `probed` is what
they found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from treadle.core.ports import Floats
from treadle.trajectory import scans
from treadle.trajectory.group import Group, GroupKey, Rollout
from treadle.trajectory.scans import Column as Column
from treadle.trajectory.scans import Index as Index
from treadle.trajectory.scans import Mask as Mask
from treadle.trajectory.segment import Author, Segment


@dataclass(frozen=True, eq=False)
class Forest:
    """Columns of N segments. Every array has length N unless it says otherwise.

    Raises ValueError when a row's predecessor does not stand before it (a cycle, a child before its parent) or belongs
    to another group, and when a column has another length.
    """

    segments: tuple[Segment, ...]
    rollouts: tuple[Rollout, ...]
    """The R rollouts that train, in the order of `rollout_leaf`."""
    parent: Index
    """Context predecessor's row, -1 for roots."""
    after: Index
    """Time predecessor's row, -1 for roots."""
    group: Index
    """Dense group number 0..G-1, in the order given to `of`."""
    length: Index
    """Tokens of the segment."""
    action: Mask
    """Written by the policy or a demonstrator."""
    policy: Mask
    """Sampled by the policy."""
    reward: Column
    """Sum of the training rewards put on this action; 0 on every other row."""
    turn: Index
    rollout_leaf: Index
    """[R] row where each rollout ends in time."""
    keys: tuple[GroupKey, ...]
    """[G] what makes each group."""
    probed: Column
    """Mean return of the probes that began behind the row, from there on; NaN where none did."""
    notes: Mapping[str, Column] = field(default_factory=dict)
    """[T] columns by name, one number per token of all rows in order; NaN where a token has none."""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Forest:
        """Columns over the valid rollouts of these groups."""
        segments: list[Segment] = []
        rollouts: list[Rollout] = []
        numbers: list[int] = []
        rewards: dict[str, float] = {}
        probed: dict[str, float] = {}
        for number, group in enumerate(groups):
            valid = group.valid
            kept = _needed(group, [leaf for r in valid for leaf in r.leaves])
            segments += kept
            numbers += [number] * len(kept)
            rollouts += valid
            rewards |= group.rewards_within({s.id for s in kept})
            probed |= group.probed
        row = {s.id: i for i, s in enumerate(segments)}
        assert len(row) == len(segments), "segment ids must be unique"
        return cls(
            segments=tuple(segments),
            rollouts=tuple(rollouts),
            parent=np.array([row[s.parent] if s.parent else -1 for s in segments], dtype=np.int64),
            after=np.array([row[s.after] if s.after else -1 for s in segments], dtype=np.int64),
            group=np.array(numbers, dtype=np.int64),
            length=np.array([len(s) for s in segments], dtype=np.int64),
            action=np.array([s.is_action for s in segments], dtype=bool),
            policy=np.array([s.author is Author.POLICY for s in segments], dtype=bool),
            reward=np.array([rewards.get(s.id, 0.0) for s in segments], dtype=np.float64),
            turn=np.array([s.turn for s in segments], dtype=np.int64),
            rollout_leaf=np.array([row[r.leaves[-1]] for r in rollouts], dtype=np.int64),
            keys=tuple(g.key for g in groups),
            probed=np.array([probed.get(s.id, math.nan) for s in segments], dtype=np.float64),
        )

    def __post_init__(self) -> None:
        n = len(self.segments)
        columns = {
            "parent": self.parent, "after": self.after, "group": self.group, "length": self.length,
            "action": self.action, "policy": self.policy, "reward": self.reward, "turn": self.turn,
            "probed": self.probed,
        }
        for name, column in columns.items():
            if column.shape != (n,):
                raise ValueError(f"forest: column {name} has shape {column.shape}, expected ({n},), one per segment")
        for name, column in self.notes.items():
            if column.shape != (self.tokens,):
                raise ValueError(
                    f"forest: note {name} has shape {column.shape}, expected ({self.tokens},), one per token"
                )
        for name, link in (("parent", self.parent), ("after", self.after)):
            self._check_link(name, link)
        if self.rollout_leaf.shape != (len(self.rollouts),) or not _within(self.rollout_leaf, n):
            raise ValueError(f"forest: rollout_leaf expected one row in 0..{n - 1} for each of {len(self.rollouts)}")

    def _check_link(self, name: str, link: Index) -> None:
        wrong = np.flatnonzero((link >= np.arange(len(link))) | (link < -1))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"forest: row {row} ({self.segments[row].id}) has {name}={link[row]}, expected an earlier row or -1: "
                "a cycle, or a child before its parent; put predecessors first"
            )
        strange = np.flatnonzero((link >= 0) & (self.group[link] != self.group))
        if len(strange):
            row = int(strange[0])
            raise ValueError(
                f"forest: row {row} ({self.segments[row].id}) of group {self.group[row]} has {name}={link[row]}, "
                f"a row of group {self.group[link[row]]}; expected one of its own group"
            )

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """[G] ids of the groups."""
        return tuple(key.id for key in self.keys)

    # -- tokens ------------------------------------------------------------------------------------------------

    @cached_property
    def start(self) -> Index:
        """[N + 1] place of each row's first token among the T tokens of all rows in order; T comes last."""
        return np.concatenate([[0], np.cumsum(self.length)]).astype(np.int64)

    @property
    def tokens(self) -> int:
        """T."""
        return int(self.start[-1])

    def spread(self, column: Column) -> Column:
        """A column of rows [N] as one of tokens [T]; one of tokens as it is."""
        if len(column) == self.tokens:
            return column
        assert len(column) == len(self), f"got {len(column)} numbers, expected {len(self)} rows or {self.tokens} tokens"
        return np.repeat(column, self.length)

    def annotated(self, name: str, values: Mapping[str, Floats]) -> Forest:
        """This forest with a note: numbers per token by segment id, NaN for the segments that are not named.

        Raises ValueError when a segment has another number of tokens.
        """
        column = np.full(self.tokens, math.nan)
        for row, segment in enumerate(self.segments):
            given = values.get(segment.id)
            if given is None:
                continue
            if len(given) != len(segment):
                raise ValueError(f"note {name}: got {len(given)} numbers for the {len(segment)} tokens of {segment.id}")
            column[self.start[row] : self.start[row + 1]] = given
        return replace(self, notes={**self.notes, name: column})

    def note(self, name: str) -> Column:
        """[T] the note of this name. Raises ValueError when nobody made it."""
        if name not in self.notes:
            held = ", ".join(sorted(self.notes)) or "none"
            raise ValueError(f"the forest has no column {name!r} (it has {held}): who needs it must say so in `needs`")
        return self.notes[name]

    @cached_property
    def state(self) -> Index:
        """Number of the world's state in which an action was taken, equal within a task; -1 where it is not known."""
        seen: dict[tuple[str, str], int] = {}
        return np.array(
            [
                -1 if s.state_key is None or not acts else seen.setdefault((self.keys[g].task, s.state_key), len(seen))
                for s, acts, g in zip(self.segments, self.action, self.group, strict=True)
            ],
            dtype=np.int64,
        )

    # -- leaves ------------------------------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> Column:
        """How many rollouts end at each row."""
        return np.bincount(self.rollout_leaf, minlength=len(self)).astype(np.float64)

    @property
    def leaf(self) -> Mask:
        """Rows where at least one rollout ends in time."""
        return self.leaves > 0

    @cached_property
    def rollout_group(self) -> Index:
        """[R] group number of each rollout."""
        return self.group[self.rollout_leaf]

    @cached_property
    def returns(self) -> Column:
        """[R] total reward of each rollout: the sum over its actions in time."""
        return self.down(self.reward)[self.rollout_leaf]

    # -- scans over time ---------------------------------------------------------------------------------------

    @cached_property
    def _time(self) -> list[int]:
        """`after` as plain numbers, which a scan reads several times faster than an array."""
        return [int(row) for row in self.after.tolist()]

    @cached_property
    def _fan(self) -> list[float]:
        """`children` as plain numbers, at least 1."""
        return [float(count) for count in np.maximum(self.children, 1.0).tolist()]

    def up(self, x: Column) -> Column:
        """Sum of x over each row's subtree in time, itself included."""
        return scans.up(self._time, x)

    def down(self, x: Column) -> Column:
        """Sum of x from the root down to each row, itself included."""
        return scans.down(self._time, x)

    def fold(
        self, gain: Column, *, factor: Column | float = 1.0, ends: Column | None = None
    ) -> tuple[Column, Column]:
        """Backwards in time: value = gain + factor * rest, where rest is the mean of what follows; both [N].

        What follows a row are its time children, with their values, and the rollouts that end at it, worth 0 each or
        what `ends` [R] says.
        """
        factors = np.broadcast_to(np.asarray(factor, dtype=np.float64), (len(self),))
        worth = np.zeros(len(self)) if ends is None else self.at_leaves(ends)
        return scans.fold(self._time, self._fan, gain, factor=factors, ends=worth)

    @cached_property
    def children(self) -> Column:
        """How many time successors each row has; rollouts that end at a row count as one each."""
        inner = self.after[self.after >= 0]
        return np.bincount(inner, minlength=len(self)).astype(np.float64) + self.leaves

    def at_leaves(self, per_rollout: Column) -> Column:
        """Sum of a per-rollout column [R] at the rows where the rollouts end."""
        return np.bincount(self.rollout_leaf, weights=per_rollout, minlength=len(self)).astype(np.float64)

    def leaf_mean(self, per_rollout: Column) -> Column:
        """Mean of a per-rollout column [R] over the rollouts through each row."""
        return self.up(self.at_leaves(per_rollout)) / self.up(self.leaves)

    def child_mean(self, per_rollout: Column) -> Column:
        """Value of each row as the mean of its children's values; a rollout's own value where it ends."""
        return scans.mean(self._time, self._fan, self.at_leaves(per_rollout))

    @cached_property
    def descent(self) -> Column:
        """Probability that a uniform random walk in time from the group reaches the row."""
        roots = self.after < 0
        per_group = np.bincount(self.group[roots], minlength=len(self.group_ids))
        start = np.where(roots, 1.0 / np.maximum(per_group[self.group], 1), 0.0)
        return scans.walk(self._time, self._fan, start)

    @cached_property
    def begins(self) -> Mask:
        """Rows where an action begins. A row that goes on with the action before it, in one turn, begins none."""
        before = self.after
        goes_on = (before >= 0) & self.action & self.action[before] & (self.turn == self.turn[before])
        return np.asarray(self.action & ~goes_on, dtype=bool)

    def togo(self, gamma: float = 1.0) -> Column:
        """Reward to go from each row on, discounted once per action, mean over time children."""
        ends_action = self.action.copy()
        ends_action[self.after[self.action & ~self.begins]] = False
        return self.fold(self.reward, factor=np.where(ends_action, gamma, 1.0))[0]

    @cached_property
    def rollout_tokens(self) -> Index:
        """[R] action tokens of each rollout, over all its contexts."""
        tokens = np.where(self.action, self.length, 0).astype(np.float64)
        return self.down(tokens)[self.rollout_leaf].astype(np.int64)


def center(
    x: Column, key: Index, *, std: bool = False, loo: bool = False, eps: float = 1e-6
) -> Column:
    """x minus the mean of its key's entries, divided by (std + eps) if asked; 0 for a key with one entry.

    `std` divides by the sample standard deviation (ddof 1); `loo` takes the mean of the *other* entries.
    """
    x = np.asarray(x, dtype=np.float64)
    out = np.zeros(len(x), dtype=np.float64)
    order = np.argsort(key, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(np.asarray(key)[order])) + 1):
        values, m = x[rows], len(rows)
        if m < 2:
            continue
        baseline = (values.sum() - values) / (m - 1) if loo else values.mean()
        out[rows] = (values - baseline) / (values.std(ddof=1) + eps if std else 1.0)
    return out


def _within(rows: Index, n: int) -> bool:
    return bool(np.all((rows >= 0) & (rows < n)))


def _needed(group: Group, leaves: list[str]) -> list[Segment]:
    """All segments that these leaves depend on, in context or in time: those of the first leaf first.

    Raises ValueError when one depends on itself, or on a segment that the group does not have.
    """
    found: dict[str, Segment] = {}
    waiting: set[str] = set()
    for leaf in leaves:
        stack = [leaf]
        while stack:
            segment = group.segments.get(stack[-1])
            if segment is None:
                raise ValueError(f"group {group.key.id}: segment {stack[-1]} is missing, but others come after it")
            before = [p for p in (segment.parent, segment.after) if p is not None and p not in found]
            if not before:
                found[segment.id] = segment
                stack.pop()
            elif segment.id in waiting:
                raise ValueError(f"group {group.key.id}: segment {segment.id} comes after itself, expected no cycle")
            else:
                waiting.add(segment.id)
                stack += before
    return list(found.values())
