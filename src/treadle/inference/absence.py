"""How long rollouts stay away between two turns, and when those that are away now will be back.

A rollout leaves with its answer and is back with its next request; in between its environment works. What is left of an
absence is judged by absences that have ended: the mean of what was left of those that lasted longer than this one has
by now. So one that waits for a slow tool is expected late as soon as it is away longer than fast tools take, and where
all take alike, who left first is back first. Groups play one task each, so a group's own absences say more than those
of all rollouts, once there are enough of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np

from treadle.core.ports import Clock

REMEMBERED = 256
"""Ended absences that are remembered, of all rollouts."""
OF_A_GROUP = 32
"""Of one group."""
ENOUGH = 4
"""Fewest that say something about a group."""
NEVER = float("inf")


class Absences:
    """Who is away since when. All methods are called by the worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float | None]] = {}
        """By rollout: its group, empty for none, and when it left; None while it is here."""
        self._ended: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds."""
        self._of_group: dict[str, deque[float]] = {}

    def ask(self, rollout: str, group: str) -> None:
        """A rollout asks for the first time, or again."""
        _, since = self._seen.get(rollout, (group, None))
        self._seen[rollout] = (group, None)
        if since is None:
            return
        seconds = self._clock.now() - since
        self._ended.append(seconds)
        if group:
            self._of_group.setdefault(group, deque(maxlen=OF_A_GROUP)).append(seconds)

    def leave(self, rollout: str, group: str) -> None:
        """It has its answer."""
        if rollout in self._seen:
            self._seen[rollout] = (group, self._clock.now())

    def forget(self, key: str) -> None:
        """A rollout or a group is over."""
        self._seen.pop(key, None)
        self._of_group.pop(key, None)

    def until(self, rollouts: Collection[str], groups: Collection[str]) -> float:
        """Seconds until one of these rollouts is expected, or somebody of these groups; `NEVER` for nobody."""
        wanted = [self._seen[rollout] for rollout in rollouts if rollout in self._seen]
        if groups:
            wanted += [seen for seen in self._seen.values() if seen[0] in groups]
        return min((self._left(group, since) for group, since in wanted), default=NEVER)

    def _left(self, group: str, since: float | None) -> float:
        """What is left of an absence; 0 while nothing is known, `NEVER` for one longer than any that is."""
        if since is None:
            return 0.0
        own = self._of_group.get(group, ())
        known = np.array(own if len(own) >= ENOUGH else self._ended)
        if not len(known):
            return 0.0
        gone = self._clock.now() - since
        longer = known[known > gone]
        return float(longer.mean()) - gone if len(longer) else NEVER
