"""The board: every outstanding ticket and where it stands, shared by the three pumps.

A ticket lives  running -> generated -> ready -> trained
                                    `-> dropped        (and from any state, when the schedule or a stop cancels it)
and reaches exactly one of `trained` and `dropped`. Pumps never call each other: each changes the board and waits for
the board to change. All of it lives on one event loop, so nothing here is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from treadle.core.errors import DeadlineExceeded
from treadle.core.ports import Clock
from treadle.envs.task import Task
from treadle.pipeline.curriculum import Place
from treadle.trajectory.group import Group


class State(StrEnum):
    """Where a ticket stands."""

    RUNNING = "running"
    GENERATED = "generated"
    READY = "ready"
    DROPPED = "dropped"
    TRAINED = "trained"


NEXT: dict[State, tuple[State, ...]] = {
    State.RUNNING: (State.GENERATED, State.DROPPED),
    State.GENERATED: (State.READY, State.DROPPED),
    State.READY: (State.TRAINED, State.DROPPED),
    State.DROPPED: (),
    State.TRAINED: (),
}


@dataclass(slots=True, kw_only=True)
class Entry:
    """One admitted ticket."""

    group: Group
    task: Task
    since: float
    """Clock time of admission."""
    place: Place
    """Where in the taskset the curriculum found it."""
    state: State = State.RUNNING
    reason: str = ""
    """Why it was dropped."""
    boost: int = 0
    """How much sooner the engine serves it than the schedule says; the watchdog sets it."""
    view: Group | None = None
    """What the filters left of the group; None before they looked at it."""
    masked: Mapping[str, str] = field(default_factory=dict)
    """Rollouts that the filters left out: id to reason."""

    @property
    def ticket(self) -> int:
        """Admission number."""
        return self.group.key.ticket

    @property
    def trains(self) -> Group:
        """What trains of the group."""
        return self.group if self.view is None else self.view

    @property
    def skipped(self) -> int:
        """Tasks that the curriculum passed over for this one."""
        return self.place.skipped

    @property
    def settled(self) -> bool:
        """Ready, or dropped: nothing more will happen to it before an update takes it."""
        return self.state in (State.READY, State.DROPPED)


def batch_wait(update: int) -> str:
    """What the update pump's wait for the groups of this update is called."""
    return f"update {update} waits for its groups"


class Board:
    """Outstanding tickets, the policy version, and the one place where pumps wait."""

    def __init__(
        self, *, clock: Clock, version: int = 0, batches: int = 0, closed: frozenset[int] = frozenset(),
        tokens: int = 0,
    ) -> None:
        self.clock = clock
        self.version = version
        """Policy version that new tickets are admitted at."""
        self.batches = batches
        """Batches that were taken, trained or empty."""
        self.learned = batches
        """Batches that policy and curriculum have learned from: ahead of `batches` while one is being closed."""
        self.tokens = tokens
        """Sampled for the batches that were learned from."""
        self.closed = closed
        """Tickets of the batches that the board began with: they are not admitted again."""
        self.next_ticket = 0
        self._pass_closed()
        self.entries: dict[int, Entry] = {}
        """Outstanding tickets in order of admission."""
        self.counts = dict.fromkeys(State, 0)
        """How many of them are in each state."""
        self.late: set[int] = set()
        """Tickets whose batch waits no longer: what plays in them is given up. With too few valid rollouts: `late`."""
        self.waits: dict[str, float] = {}
        """Who waits on the board for what, and since when."""
        self.made_since: Callable[[float], bool] = lambda moment: False
        """Whether a segment was made since that clock time; asked before a wait is given up. Who plays sets it."""
        self.stopping = False
        self.occupied = ""
        """What long work with a deadline of its own is under way (an update, an evaluation); empty when none."""
        self._changed = asyncio.Event()

    def admit(self, entry: Entry) -> None:
        """Put the next ticket on the board."""
        assert entry.ticket == self.next_ticket, f"ticket {entry.ticket}, expected {self.next_ticket}"
        self.entries[entry.ticket] = entry
        self.counts[entry.state] += 1
        self.next_ticket += 1
        self._pass_closed()
        self.touch()

    def move(self, entry: Entry, state: State, *, reason: str = "") -> None:
        """Change a ticket's state; only along the arrows above."""
        assert state in NEXT[entry.state], f"ticket {entry.ticket}: {entry.state} -> {state}"
        self.counts[entry.state] -= 1
        self.counts[state] += 1
        entry.state, entry.reason = state, reason
        self.touch()

    def remove(self, ticket: int) -> None:
        """Take a finished ticket off the board."""
        state = self.entries[ticket].state
        assert not NEXT[state], f"ticket {ticket} is {state}"
        del self.entries[ticket]
        self.late.discard(ticket)
        self.counts[state] -= 1
        self.touch()

    @property
    def settled(self) -> int:
        """Tickets that are ready or dropped and wait for their batch."""
        return self.counts[State.READY] + self.counts[State.DROPPED]

    def _pass_closed(self) -> None:
        while self.next_ticket in self.closed:
            self.next_ticket += 1

    def touch(self) -> None:
        """Wake everyone who waits: something happened."""
        self._changed.set()

    def stop(self) -> None:
        """Ask all pumps to come to an end."""
        self.stopping = True
        self.touch()

    async def until(self, ready: Callable[[], bool], *, what: str, stall_s: float) -> None:
        """Wait until `ready()`. Raises DeadlineExceeded when nothing at all happens for `stall_s`.

        What happens is a change of the board or a new segment. Time in which the board is `occupied` does not count:
        that work has a deadline and a name of its own.
        """
        self.waits[what] = self.clock.now()
        try:
            while not ready():
                await self._change(what, stall_s)
        finally:
            self.waits.pop(what, None)

    async def _change(self, what: str, stall_s: float) -> None:
        """Wait until something happens on the board, or for `stall_s` in which a segment was made or work went on."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        changed = self._changed
        try:
            async with asyncio.timeout(stall_s):
                await changed.wait()
        except TimeoutError:
            if self.occupied or self.made_since(self.clock.now() - stall_s):
                return
            raise DeadlineExceeded(
                f"{what}: nothing happened for {stall_s:g} s; {self.describe(besides=what)}"
            ) from None

    def describe(self, *, besides: str = "") -> str:
        """One line: which tickets are in which state, and since when; when none is running, who else waits."""
        now = self.clock.now()
        waiting = [e for e in self.entries.values() if not e.settled]
        if not waiting:
            others = [f"{what} since {now - since:.0f} s" for what, since in self.waits.items() if what != besides]
            return "; ".join(["no ticket is running", *others])
        shown = ", ".join(f"ticket {e.ticket} {e.state} since {now - e.since:.0f} s" for e in waiting[:4])
        more = len(waiting) - 4
        return shown + (f" and {more} more" if more > 0 else "")
