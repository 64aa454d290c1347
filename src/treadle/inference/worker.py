"""The worker: one thread that steps the engine while the event loop stays free.

The event loop posts small closures (submit, cancel, release, load) into an inbox and wakes the thread; the thread runs
them between two steps, so scheduler, cache and arena are touched by one thread only and need no lock. Answers go back
through each flight's `deliver`. With nothing to do the thread sleeps on the inbox's condition until a post wakes it.

One step: hold the policy's gate for reading; then, in the compute thread, plan under the version found there, forward,
draw, commit. No weight changes inside a step, and every token carries the version that made it. A step that fails
takes down the flights in it, whose KV is forgotten, and nobody else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treadle.core import compute
from treadle.core.errors import one_line
from treadle.core.memory import GB, Memory
from treadle.core.ports import Clock, Finish, Ids
from treadle.inference.arena import Arena
from treadle.inference.attention import StepAttention
from treadle.inference.cache import NO_IDS, KvCache, Node
from treadle.inference.config import EngineConfig
from treadle.inference.fixed import FixedShapes
from treadle.inference.flight import Decode, Flight, broken
from treadle.inference.sampler import Drawn, Sampler
from treadle.inference.scheduler import Scheduler, Work
from treadle.models import AttentionPlan, Policy
from treadle.models.memo import Sums

IDLE_S = 60.0
"""How long the thread sleeps at most before it looks around again."""


@dataclass(slots=True)
class Counters:
    """What was done since the start."""

    steps: int = 0
    forward_tokens: int = 0
    sampled_tokens: int = 0
    joined_tokens: int = 0
    """Sampled tokens that were drawn from another request's logits."""
    prefilled_tokens: int = 0
    """Forwarded tokens that were part of a prompt or a recomputation."""
    padded_tokens: int = 0
    """Rows of forwards that stood for no token: in deterministic mode all forwards have one size."""
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    busy_s: float = 0.0
    """Seconds inside steps, waiting at the gate included."""


@dataclass(slots=True)
class Drain:
    """New weights that wait until the running requests have ended."""

    version: int
    done: Callable[[], None]


class Worker:
    """Owns the engine's state and its thread."""

    def __init__(
        self, policy: Policy, config: EngineConfig, *, clock: Clock, decode: Decode | None, memory: Memory | None = None
    ) -> None:
        dims = policy.dims
        self.arena = Arena(
            layers=dims.layers,
            kv_heads=dims.kv_heads,
            head_dim=dims.head_dim,
            tokens=config.kv_budget_tokens,
            block_tokens=config.block_tokens,
            like=next(policy.module.parameters()),
        )
        self.cache = KvCache(self.arena, clock)
        self.scheduler = Scheduler(config, self.cache)
        self.counters = Counters()
        self._policy = policy
        self._clock = clock
        self._decode = decode
        self._memory = memory
        """The process's budget; None has none."""
        self._sampler = Sampler()
        self._fixed: FixedShapes | None = None
        """None unless the mode is deterministic."""
        if config.deterministic:
            context = min(config.context, dims.context)
            self._fixed = FixedShapes(self.arena, dims, rows=config.rows, context=context)
        self._served: int | None = None
        """Policy version of the last step."""
        self._drains: deque[Drain] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self.died = ""
        """What ended the thread before its time; empty while it is well."""
        self._thread = threading.Thread(target=self._run, name="treadle-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Callable[[], None]) -> None:
        """Have `command` run by the thread before its next step."""
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def stop(self, timeout_s: float) -> bool:
        """End after the present step; flights that are left fail. False when it has not ended in time. Blocking."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._stopping

    # What the event loop posts; all of it runs in the thread.

    def submit(self, flight: Flight) -> None:
        """Queue a request."""
        self.scheduler.submit(flight)

    def cancel(self, flight: Flight) -> None:
        """Nobody waits any more: free its slot, and its KV back to what was there before it."""
        if flight.done:
            return
        self.counters.cancelled += 1
        self._retire(flight, NO_IDS)

    def renew(self, version: int, *, recompute: bool) -> None:
        """The weights changed between two steps."""
        self.cache.renew(version)
        if recompute:
            self.scheduler.preempt(list(self.scheduler.running))
            self.cache.forget_idle()

    def drain(self, drain: Drain) -> None:
        """Start nothing new until what runs has ended."""
        self._drains.append(drain)
        self.scheduler.paused = True

    def relieve(self) -> None:
        """Where memory runs short, give some back: unused pages, then the KV of what is idle."""
        excess = 0 if self._memory is None else self._memory.excess()
        if not excess:
            return
        assert self._memory is not None
        before = self.cache.evicted
        freed = self.cache.relieve(excess)
        if freed:
            self._memory.acted("engine", freed_gb=freed / GB, evicted=self.cache.evicted - before)

    # The thread.

    def _run(self) -> None:
        reason = "the engine was closed while the request was in flight"
        try:
            while self._next():
                self._step()
        except BaseException as error:  # the thread's border: those who wait must hear of its end, whatever it was
            reason = self.died = f"the engine's thread ended with {type(error).__name__}: {one_line(error)}"
        self._stopping = True
        self._run_inbox()
        for flight in self.scheduler.everyone():
            self._fail(flight, reason)
        for drain in self._drains:
            drain.done()

    def _next(self) -> bool:
        """Run the inbox, wait for work. False when the thread must end."""
        while not self._stopping:
            self._run_inbox()
            while self._drains and not self.scheduler.running:
                drain = self._drains.popleft()
                self.renew(drain.version, recompute=True)
                drain.done()
                self.scheduler.paused = bool(self._drains)
            if not self.scheduler.idle:
                return True
            with self._wake:
                if not self._inbox and not self._stopping:
                    self._wake.wait(IDLE_S)
        return False

    def _run_inbox(self) -> None:
        with self._wake:
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()

    def _step(self) -> None:
        self.relieve()
        works: list[Work] = []
        begun = self._clock.now()
        try:
            with self._policy.gate.read("engine step"):
                self._run_inbox()  # what came while it waited at the gate
                compute.run(lambda: self._advance(works))
        # Boundary: what a forward raises (memory, a bad model, a panic of native code) belongs to the requests in it.
        except BaseException as error:
            self._break(works, error)
        self.counters.busy_s += self._clock.now() - begun

    def _advance(self, works: list[Work]) -> None:
        """Plan the step into `works`, an empty list, and take it. In the compute thread, while this one waits."""
        version = self._policy.version
        if self._fixed is not None and version != self._served:
            self.renew(version, recompute=True)  # what a token depends on has one version: its own
        self._served = version
        with torch.inference_mode():
            works += self.scheduler.plan(version)
            if works:
                self._forward(works, version)

    def _forward(self, works: list[Work], version: int) -> None:
        device = self.arena.k[0].device
        ids = np.concatenate([w.ids for w in works]).astype(np.int64)
        pos = np.concatenate([np.arange(w.start, w.start + len(w.ids)) for w in works]).astype(np.int64)
        plan: AttentionPlan
        if self._fixed is None:
            plan = StepAttention(self.arena, works, heads=self._policy.dims.heads)
        else:
            ids, pos, plan = self._fixed.padded(ids), self._fixed.padded(pos), self._fixed.attention(works)
        hidden = self._policy.hidden(
            torch.from_numpy(ids).to(device), torch.from_numpy(pos).to(device), plan, self._named(works)
        )
        ends = np.cumsum([len(w.ids) for w in works]) - 1
        emits = [
            (int(end), work.owner) for end, work in zip(ends, works, strict=True)
            if work.emits and not isinstance(work.owner, Node)
        ]
        drawn = None
        if emits:
            drawn = self._draw(hidden, emits)
        for work in works:
            work.run.append(len(work.ids), version)
        self._count(works, int(ends[-1]) + 1)
        at = 0
        for _, flights in emits:
            assert drawn is not None
            self._take(flights, drawn, at, version)
            at += len(flights)

    def _named(self, works: Sequence[Work]) -> Sums | None:
        """The names of all tokens' contexts, for the policy's memo; None when it has none or forwards are padded."""
        memo = self._policy.memo
        if memo is None or self._fixed is not None:
            return None
        found = []
        for work in works:
            known = work.owner.ids if isinstance(work.owner, Node) else work.owner[0].ids
            found.append(memo.names.sums(known[: work.start + len(work.ids)])[work.start :])
        return np.concatenate(found)

    def _draw(self, hidden: Tensor, emits: Sequence[tuple[int, tuple[Flight, ...]]]) -> Drawn:
        """Each flight's next token, from the logits of its last one."""
        if self._fixed is not None:
            return self._fixed.draw(self._policy.logits(hidden), emits)
        logits = self._policy.logits(hidden[torch.tensor([end for end, _ in emits], device=hidden.device)])
        groups = [flights for _, flights in emits]
        return self._sampler.draw(
            logits,
            uniforms=torch.tensor([f.uniform() for flights in groups for f in flights], dtype=torch.float64),
            temperature=torch.tensor([flights[0].temperature for flights in groups]),
            narrowing=[flights[0].narrowing for flights in groups],
            rows=torch.tensor([row for row, flights in enumerate(groups) for _ in flights]),
        )

    def _count(self, works: Sequence[Work], tokens: int) -> None:
        rows = [w.owner for w in works if w.emits and not isinstance(w.owner, Node)]
        self.counters.steps += 1
        self.counters.forward_tokens += tokens
        if self._fixed is not None:
            self.counters.padded_tokens += self._fixed.rows - tokens
        self.counters.prefilled_tokens += tokens - sum(1 for flights in rows if flights[0].sampled)
        self.counters.joined_tokens += sum(len(flights) - 1 for flights in rows)

    def _take(self, flights: Sequence[Flight], drawn: Drawn, at: int, version: int) -> None:
        """Give the flights of one tip what they drew, from place `at`; those that go on differently part."""
        going: dict[int, list[Flight]] = {}
        for i, flight in enumerate(flights, at):
            if not drawn.finite[i]:
                self._fail(flight, f"logits are not finite at policy version {version}")
                continue
            flight.take(drawn.ids[i], drawn.logprobs[i], drawn.entropy[i], version)
            self.counters.sampled_tokens += 1
            self._end_if_finished(flight)
            if not flight.done:
                going.setdefault(drawn.ids[i], []).append(flight)
        for parting in list(going.values())[1:]:
            self.scheduler.part(parting)

    def _end_if_finished(self, flight: Flight) -> None:
        try:
            finish = flight.finished(self._decode)
        # Boundary: `decode` is the caller's code; what it raises ends the flight it was called for.
        except Exception as error:
            reason = f"decoding for stop strings failed: {type(error).__name__}: {error}"
            self._fail(flight, reason, error, sound=True)
            return
        if finish is not None:
            self._finish(flight, finish)

    def _finish(self, flight: Flight, finish: Finish) -> None:
        completion = flight.completion(finish)
        self.counters.finished += 1
        self._retire(flight, flight.ids[: flight.count - flight.pending])
        flight.deliver(completion)

    def _break(self, works: list[Work], error: BaseException) -> None:
        """A step failed: fail its flights and those that build on a node in it; without works, everyone that runs."""
        self.counters.steps += 1
        owners = [w.owner for w in works]
        nodes = {o for o in owners if isinstance(o, Node)}
        flights = [f for o in owners if not isinstance(o, Node) for f in o]
        flights += [f for f in self.scheduler.running if f.tip is not None and not nodes.isdisjoint(f.tip.above)]
        if not works:
            flights = list(self.scheduler.running) or self.scheduler.everyone()
        for flight in flights:
            self._fail(flight, f"engine step failed: {type(error).__name__}: {error}", error)

    def _fail(self, flight: Flight, reason: str, cause: BaseException | None = None, *, sound: bool = False) -> None:
        """End a flight with an error. `sound`: its KV is as it should be, and others may work on."""
        if flight.done:
            return
        flight.done = True
        self.counters.failed += 1
        self.scheduler.remove(flight)
        tip, flight.tip = flight.tip, None
        if tip is not None:
            (self.cache.leave if sound else self.cache.spoil)(tip)
        flight.deliver(broken(reason, cause))

    def _retire(self, flight: Flight, ids: Ids) -> None:
        """End a flight; the entries of `ids` stay for its rollout."""
        flight.done = True
        self.scheduler.remove(flight)
        tip, flight.tip = flight.tip, None
        if tip is not None:
            self.cache.leave(tip, ids)
