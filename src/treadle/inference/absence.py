"""How long rollouts stay away between two turns, and when those that are away now will be back.

A rollout leaves with its answer and is back with its next request; in between its environment works. What is left of an
absence is judged by absences that have ended: the mean of what was left of those that lasted longer than this one has
by now. So one that waits for a slow tool is expected late as soon as it is away longer than fast tools take, and where
all take alike, who left first is back first. Groups play one task each, so a group's own absences say more than those
of all rollouts, once there are enough of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from itertools import accumulate

from treadle.core.ports import Clock

REMEMBERED = 256
"""Ended absences that are remembered, of all rollouts."""
OF_A_GROUP = 32
"""Of one group."""
ENOUGH = 4
"""Fewest that say something about a group."""
NEVER = float("inf")


class Ended:
    """The last few absences that have ended. Asked far more often than told: an eviction asks for every node."""

    def __init__(self, most: int) -> None:
        self._seconds: deque[float] = deque(maxlen=most)
        self._order: list[float] = []
        """Sorted, made when it is asked for."""
        self._sums: list[float] = []
        """Of each of them and all longer ones."""

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float) -> None:
        """One more."""
        self._seconds.append(seconds)
        self._order = []

    def left(self, gone: float) -> float:
        """Mean of what was left, after `gone` seconds, of those that lasted longer; `NEVER` when none did."""
        if not self._order:
            self._order = sorted(self._seconds)
            self._sums = list(accumulate(reversed(self._order)))[::-1]
        at = bisect_right(self._order, gone)
        longer = len(self._order) - at
        return self._sums[at] / longer - gone if longer else NEVER


class Absences:
    """Who is away since when. All methods are called by the worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float | None]] = {}
        """By rollout: its group, empty for none, and when it left; None while it is here."""
        self._members: dict[str, set[str]] = {}
        """Rollouts of each group."""
        self._ended = Ended(REMEMBERED)
        self._of_group: dict[str, Ended] = {}

    def ask(self, rollout: str, group: str) -> None:
        """A rollout asks for the first time, or again."""
        _, since = self._seen.get(rollout, (group, None))
        self._seen[rollout] = (group, None)
        if group:
            self._members.setdefault(group, set()).add(rollout)
        if since is None:
            return
        seconds = self._clock.now() - since
        self._ended.add(seconds)
        if group:
            self._of_group.setdefault(group, Ended(OF_A_GROUP)).add(seconds)

    def leave(self, rollout: str, group: str) -> None:
        """It has its answer."""
        if rollout in self._seen:
            self._seen[rollout] = (group, self._clock.now())

    def forget(self, key: str) -> None:
        """A rollout or a group is over."""
        group, _ = self._seen.pop(key, ("", None))
        members = self._members.get(group, set())
        members.discard(key)
        if not members:
            self._members.pop(group, None)
        self._of_group.pop(key, None)

    def until(self, rollouts: Collection[str], groups: Collection[str]) -> float:
        """Seconds until one of these rollouts is expected, or somebody of these groups; `NEVER` for nobody."""
        wanted = [*rollouts, *(rollout for group in groups for rollout in self._members.get(group, ()))]
        now = self._clock.now()
        found = (self._left(*self._seen[rollout], now) for rollout in wanted if rollout in self._seen)
        return min(found, default=NEVER)

    def _left(self, group: str, since: float | None, now: float) -> float:
        """What is left of an absence; 0 while nothing is known, `NEVER` for one longer than any that is."""
        own = self._of_group.get(group)
        known = own if own is not None and len(own) >= ENOUGH else self._ended
        return 0.0 if since is None or not len(known) else known.left(now - since)
