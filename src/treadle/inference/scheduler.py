"""Which tokens go into the next forward.

Requests wait in order of (priority, arrival). One that gets a slot opens a context and runs until it ends. Siblings
often say the same for a while: a request whose tokens equal those of a running one joins its context, so that equal
tokens in equal contexts are computed once and each request draws its own next token from the same logits. Those that
draw differently part. Nobody joins a context whose entries are older than its own would be: a rollout that begins is
computed under the version of now alone.

Each step takes one token of every context that decodes (in deterministic mode of the first `rows` of them); what is
left of the step's tokens goes to prefill in chunks, trunks before the members that wait for them; of trunks that begin
alike the first goes ahead. A trunk that completes in a step lets its members run in the same step: within a layer all
new keys are written before any is read.

Memory: a flight that cannot open its context waits with everyone behind it. A context that cannot grow preempts the
last in order, perhaps itself; preempted flights go back to their old places in the queue and are recomputed. A single
flight always fits, so the first in order always gets on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.ports import Ids
from treadle.inference.arena import Run
from treadle.inference.cache import Context, KvCache, Trunk
from treadle.inference.config import EngineConfig
from treadle.inference.flight import Flight

Order = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Consecutive tokens of one sequence in one forward."""

    ids: Ids
    """[n]"""
    start: int
    """Position of the first."""
    before: tuple[Run, ...]
    """Complete runs that they see, in order."""
    run: Run
    """The run that gets their entries; they see its entries too."""
    owner: tuple[Flight, ...] | Trunk
    """Whose tokens they are: the flights of one context, or a trunk."""
    emits: bool
    """Whether the flights draw their next tokens from the last one's logits."""


class Scheduler:
    """The waiting and the running. All methods are called by the worker."""

    def __init__(self, config: EngineConfig, cache: KvCache) -> None:
        self.config = config
        self.cache = cache
        self.running: list[Flight] = []
        self.paused = False
        """While True nobody gets a slot."""
        self.preempted = 0
        """Flights that lost their slot for want of memory since the start."""
        self._short = False
        """Memory ran out: nobody gets a slot until a running flight ends."""
        self._waiting: list[tuple[Order, Flight]] = []
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self.running and (self.paused or not self._waiting)

    def submit(self, flight: Flight) -> None:
        """Queue a new flight."""
        flight.order = (flight.request.priority, self._arrivals)
        self._arrivals += 1
        heapq.heappush(self._waiting, (flight.order, flight))

    def remove(self, flight: Flight) -> None:
        """Take a flight out, wherever it is; its context is the caller's business."""
        if flight in self.running:
            self.running.remove(flight)
            self._short = False
        else:
            self._waiting = [x for x in self._waiting if x[1] is not flight]
            heapq.heapify(self._waiting)

    def preempt(self, flights: Sequence[Flight]) -> None:
        """Send running flights back to the queue without their KV."""
        for flight in flights:
            self.running.remove(flight)
            context = flight.context
            flight.lose_kv()
            if context is not None:
                self.cache.abandon(context)
            heapq.heappush(self._waiting, (flight.order, flight))

    def make_way(self, flights: Sequence[Flight]) -> None:
        """Preempt for want of memory."""
        self.preempted += len(flights)
        self.preempt(flights)
        self._short = True

    def part(self, flights: Sequence[Flight]) -> None:
        """Flights that drew another token than the others of their context: give them one of their own."""
        fork = self.cache.split(_context(flights[0]), [f.key for f in flights], flights[0].count)
        if fork is None:
            self.make_way(flights)
            return
        for flight in flights:
            flight.context = fork

    def everyone(self) -> list[Flight]:
        """All flights, running first."""
        return [*self.running, *(f for _, f in sorted(self._waiting, key=lambda x: x[0]))]

    def plan(self, version: int) -> list[Work]:
        """The next step's work under this policy version: single tokens first, then the chunks."""
        self.cache.renew(version)
        self._admit(version)
        self._make_room()
        singles: list[Work] = []
        chunks: list[Work] = []
        left = self.config.step_tokens
        begun: set[Trunk] = set()
        rows = self._rows()
        for flights in rows.values():
            if _decoding(flights[0]) and len(singles) < left:
                singles.append(_own_work(flights, 1))
        left -= len(singles)
        for context, flights in rows.items():
            if left <= 0:
                break
            if _decoding(flights[0]):
                continue
            trunk = context.trunk
            if trunk is not None and not trunk.ready and trunk not in begun:
                if not self.cache.begin(trunk, begun):
                    continue
                if not trunk.ready:
                    begun.add(trunk)
                    chunks.append(_trunk_work(trunk, left))
                    left -= len(chunks[-1].ids)
            if left <= 0 or not (trunk is None or trunk.ready or _complete_after(trunk, chunks)):
                continue
            work = _own_work(flights, min(left, flights[0].pending))
            left -= len(work.ids)
            (singles if len(work.ids) == 1 else chunks).append(work)
        singles.sort(key=lambda w: (w.run.capacity, w.run.row))
        return singles + chunks

    def _rows(self) -> dict[Context, list[Flight]]:
        """The flights of every context, in order; all flights of one context have the same tokens."""
        rows: dict[Context, list[Flight]] = {}
        for flight in self.running:
            rows.setdefault(_context(flight), []).append(flight)
        return rows

    def _admit(self, version: int) -> None:
        if not self._waiting or self.paused or len(self.running) >= self.config.slots:
            return
        twins = {self._likeness(f, version): f for f in self.running}
        while self._waiting and len(self.running) < self.config.slots:
            if self._short and self.running:
                break
            flight = self._waiting[0][1]
            twin = twins.setdefault(self._likeness(flight, version), flight)
            if twin is flight:
                context = self.cache.open(flight.ids[: flight.count], flight.request.cache, version)
                if context is None:
                    break
            else:
                context = _context(twin)
                self.cache.join(context, flight.key)
            heapq.heappop(self._waiting)
            flight.context = context
            self.running.append(flight)
        self.running.sort(key=lambda f: f.order)

    def _likeness(self, flight: Flight, version: int) -> tuple[object, ...]:
        """What two flights have in common that share a context: how they draw, all tokens, the oldest KV they build on.

        A flight that has no KV yet will get that of `version`.
        """
        age = self.cache.age(flight.key) if flight.context is None else flight.context.oldest
        known = flight.ids[: flight.count].tobytes()
        return flight.temperature, flight.narrowing, known, version if age is None else age

    def _make_room(self) -> None:
        for flight in list(self.running):
            while flight.context is not None and not self.cache.grow(flight.context, flight.count):
                last = self.running[-1].context
                self.make_way([f for f in self.running if f.context is last])


def _context(flight: Flight) -> Context:
    assert flight.context is not None
    return flight.context


def _decoding(flight: Flight) -> bool:
    context = _context(flight)
    return flight.pending == 1 and (context.trunk is None or context.trunk.ready)


def _own_work(flights: Sequence[Flight], count: int) -> Work:
    flight = flights[0]
    context = _context(flight)
    start = context.length
    return Work(
        ids=flight.ids[start : start + count],
        start=start,
        before=() if context.trunk is None else (context.trunk.run,),
        run=context.own,
        owner=tuple(flights),
        emits=start + count == flight.count,
    )


def _trunk_work(trunk: Trunk, most: int) -> Work:
    start = trunk.run.length
    return Work(ids=trunk.ids[start : start + most], start=start, before=(), run=trunk.run, owner=trunk, emits=False)


def _complete_after(trunk: Trunk, chunks: list[Work]) -> bool:
    return any(w.owner is trunk and w.start + len(w.ids) == len(trunk.ids) for w in chunks)
