"""Which tokens go into the next forward.

Requests wait in order of (priority, arrival). One that gets a slot gets a tip in the cache and runs until it ends.
Siblings often say the same for a while: a request whose tokens equal those of a running one joins its tip, so that
equal tokens in equal contexts are computed once and each request draws its own next token from the same logits. Those
that draw differently part. Nobody joins a tip whose entries are older than its own would be: a rollout that begins is
computed under the version of now alone.

Each step takes one token of every tip that decodes (in deterministic mode of the first `rows` of them); what is left of
the step's tokens goes to prefill in chunks, nodes that several build on before the tips below them; of nodes that begin
alike the first goes ahead. A node that completes in a step lets those below run in the same step: within a layer all
new keys are written before any is read. When the version changes, whoever waits for an unfinished node begins again, so
that its entries have one version.

Memory: a flight that cannot open its tip waits with everyone behind it. A tip that cannot grow preempts the last in
order, perhaps itself; preempted flights go back to their old places in the queue and are recomputed. A single flight
always fits, so the first in order always gets on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.ports import Ids
from treadle.inference.arena import Run
from treadle.inference.cache import KvCache, Node
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
    """Runs above that they see, in order; complete when this forward is."""
    run: Run
    """The run that gets their entries; they see its entries too."""
    owner: tuple[Flight, ...] | Node
    """Whose tokens they are: the flights of one tip, or a node that several build on."""
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
        self._version = 0
        """Of the last plan."""
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
        if flight.key:
            self.cache.absences.ask(flight.key, flight.group)
        flight.order = (flight.request.priority, self._arrivals)
        self._arrivals += 1
        heapq.heappush(self._waiting, (flight.order, flight))

    def remove(self, flight: Flight) -> None:
        """Take a flight out, wherever it is; its tip is the caller's business."""
        if flight.key:
            self.cache.absences.leave(flight.key, flight.group)
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
            tip = _tip(flight)
            flight.lose_kv()
            self.cache.abandon(tip)
            heapq.heappush(self._waiting, (flight.order, flight))

    def make_way(self, flights: Sequence[Flight]) -> None:
        """Preempt for want of memory."""
        self.preempted += len(flights)
        self.preempt(flights)
        self._short = True

    def part(self, flights: Sequence[Flight]) -> None:
        """Flights that drew another token than the others of their tip: give them one of their own."""
        fork = self.cache.part(_tip(flights[0]), [f.key for f in flights], flights[0].ids[: flights[0].count])
        if fork is None:
            self.make_way(flights)
            return
        for flight in flights:
            flight.tip = fork

    def everyone(self) -> list[Flight]:
        """All flights, running first."""
        return [*self.running, *(f for _, f in sorted(self._waiting, key=lambda x: x[0]))]

    def plan(self, version: int) -> list[Work]:
        """The next step's work under this policy version: single tokens first, then the chunks."""
        self._renew(version)
        self._admit(version)
        self._make_room()
        decoding: list[list[Flight]] = []
        prefilling: list[list[Flight]] = []
        for flights in self._rows().values():
            (decoding if _decodes(flights[0]) else prefilling).append(flights)
        left = self.config.step_tokens
        singles = [_own_work(flights, 1) for flights in decoding[:left]]
        chunks: list[Work] = []
        begun: dict[Node, bool] = {}
        left -= len(singles)
        for flights in prefilling:
            for work in self._climb(flights, begun, left):
                left -= len(work.ids)
                (singles if len(work.ids) == 1 else chunks).append(work)
        singles.sort(key=lambda w: w.run.place)
        return singles + chunks

    def _renew(self, version: int) -> None:
        if version != self._version:
            self._version = version
            self.preempt([f for f in self.running if not _above_ready(f)])
        self.cache.renew(version)
        for flight in self.running:
            _tip(flight).ids = flight.ids

    def _climb(self, flights: Sequence[Flight], begun: dict[Node, bool], left: int) -> list[Work]:
        """Work on what is unfinished of one path, from the top down, with at most `left` tokens.

        `begun` are the nodes that are worked on in this step, and whether that finishes them.
        """
        works: list[Work] = []
        tip = _tip(flights[0])
        for node in (*tip.above, tip):
            if node is not tip and (node.ready or begun.get(node)):
                continue
            if left <= 0 or node in begun or not self.cache.begin(node, begun):
                break
            if node is not tip and node.ready:
                continue
            work = _own_work(flights, min(left, flights[0].pending)) if node is tip else _node_work(node, left)
            left -= len(work.ids)
            works.append(work)
            begun[node] = node.run.length + len(work.ids) >= node.planned
            if not begun[node]:
                break
        return works

    def _rows(self) -> dict[Node, list[Flight]]:
        """The flights of every tip, in order; all flights of one tip have the same tokens."""
        rows: dict[Node, list[Flight]] = {}
        for flight in self.running:
            rows.setdefault(_tip(flight), []).append(flight)
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
                tip = self.cache.open(flight.ids[: flight.count], flight.request.cache, version)
                if tip is None:
                    break
            else:
                tip = _tip(twin)
                self.cache.join(tip, flight.key)
            heapq.heappop(self._waiting)
            flight.tip = tip
            self.running.append(flight)
        self.running.sort(key=lambda f: f.order)

    def _likeness(self, flight: Flight, version: int) -> tuple[object, ...]:
        """What two flights have in common that share a tip: how they draw, all tokens, the oldest KV they build on.

        A flight that has no KV yet will get that of `version`.
        """
        age = self.cache.age(flight.key) if flight.tip is None else flight.tip.oldest
        known = flight.ids[: flight.count].tobytes()
        return flight.temperature, flight.narrowing, known, version if age is None else age

    def _make_room(self) -> None:
        for flight in list(self.running):
            while flight.tip is not None and not self.cache.grow(flight.tip, flight.count):
                last = self.running[-1].tip
                self.make_way([f for f in self.running if f.tip is last])


def _tip(flight: Flight) -> Node:
    assert flight.tip is not None
    return flight.tip


def _above_ready(flight: Flight) -> bool:
    return all(node.ready for node in _tip(flight).above)


def _decodes(flight: Flight) -> bool:
    return flight.pending == 1 and _above_ready(flight)


def _own_work(flights: Sequence[Flight], count: int) -> Work:
    flight = flights[0]
    tip = _tip(flight)
    return Work(
        ids=flight.ids[tip.length : tip.length + count],
        start=tip.length,
        before=tuple(node.run for node in tip.above),
        run=tip.run,
        owner=tuple(flights),
        emits=tip.length + count == flight.count,
    )


def _node_work(node: Node, most: int) -> Work:
    end = min(node.length + most, node.start + node.planned)
    before = tuple(above.run for above in node.above)
    return Work(
        ids=node.ids[node.length : end], start=node.length, before=before, run=node.run, owner=node, emits=False
    )
