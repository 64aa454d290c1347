"""Permits: back-pressure taken before work starts.

A bounded queue blocks at the end of expensive work; a permit is taken before it begins and held until the batch that
its ticket belongs to has been trained or dropped. Who waits: the generate pump. Who wakes it: the update pump, when it
gives the permits of a batch back.
"""

from __future__ import annotations

from treadle.core.ports import Statistics


class Permits:
    """A counted set of tickets. Never holds more than `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.most = 0
        """Most that were ever held at once."""
        self._held: set[int] = set()

    @property
    def held(self) -> int:
        """How many are out."""
        return len(self._held)

    @property
    def free(self) -> int:
        """How many may be taken now."""
        return self.limit - len(self._held)

    def take(self, ticket: int) -> None:
        """Take one for a ticket that has none."""
        assert self.free > 0, f"{self.held} of {self.limit} permits are out"
        assert ticket not in self._held, f"ticket {ticket} holds a permit already"
        self._held.add(ticket)
        self.most = max(self.most, len(self._held))

    def give_back(self, ticket: int) -> None:
        """Give a ticket's permit back, exactly once."""
        self._held.remove(ticket)

    def statistics(self) -> Statistics:
        """What is out."""
        return Statistics(values={"permits_held": self.held, "permits_limit": self.limit, "permits_most": self.most})
