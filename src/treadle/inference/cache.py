"""Which KV is held for whom: the kept KV of rollouts, the trunks of groups, and what goes when memory is short.

A `Context` is the KV of one token sequence: first the trunk it shares, then a run of its own. Rollouts that have said
the same hold one context together, and requests with the same tokens work on it together; who draws another token
gets a copy of the run. A context is *idle* while no request works on it, between two turns. A `Trunk` is the prompt of
a group without its last token: each member computes that one itself and draws its own continuation. Trunks carry the
policy version that computes them; a context attaches only to a trunk of the present version, and only if its ids
really start with it.

Everything here is a saving, never needed for a right answer: a context or a trunk may vanish between two requests and
is computed anew. When the arena is full, what has been idle longest goes first. All methods are called by the worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from treadle.core.ports import CacheHint, Ids
from treadle.inference.arena import Arena, Run

NO_IDS: Ids = np.zeros(0, dtype=np.int32)
STEM = 16
"""Fewest leading tokens that a trunk takes over from another one, or waits a step for."""
HEADROOM = 32
"""Entries beyond the known tokens that a new run has room for, so that it does not move at once."""


@dataclass(slots=True, eq=False)
class Trunk:
    """KV that the rollouts of a group share."""

    key: str
    ids: Ids
    version: int
    """The policy version of all its entries."""
    run: Run
    users: int = 0
    """Contexts that build on it."""
    open: bool = True
    """False when no further context may attach: released, outdated or broken."""
    broken: bool = False
    """Its entries may not be finite: its row is cleaned before anybody else gets it."""
    used_at: int = 0

    @property
    def ready(self) -> bool:
        """Whether every entry is there."""
        return self.run.length == len(self.ids)

    @property
    def growing(self) -> bool:
        """Whether some entries are there and somebody waits for the others."""
        return 0 < self.run.length < len(self.ids) and self.users > 0


@dataclass(slots=True, eq=False)
class Context:
    """KV of one sequence: its trunk, if any, and its own run."""

    own: Run
    trunk: Trunk | None = None
    keys: set[str] = field(default_factory=set)
    """Rollouts for which it is kept between their requests; without any it ends with its last request."""
    ids: Ids = field(default_factory=lambda: NO_IDS)
    """Ids of its entries, trunk included, as far as those who left it know them: all of them while it is idle."""
    users: int = 1
    """Requests that work on it."""
    broken: bool = False
    """Its entries may not be finite."""
    used_at: int = 0

    @property
    def base(self) -> int:
        """Entries of the trunk, counted whole."""
        return 0 if self.trunk is None else len(self.trunk.ids)

    @property
    def length(self) -> int:
        """Entries held, a trunk in the making counted whole."""
        return self.base + self.own.length

    @property
    def oldest(self) -> int | None:
        """Oldest policy version among the entries; None when there are none."""
        runs = (self.own,) if self.trunk is None else (self.trunk.run, self.own)
        return min((r.oldest for r in runs if r.oldest is not None), default=None)


class KvCache:
    """Contexts by rollout and trunks by group."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.evicted = 0
        """Contexts and trunks dropped for want of room since the start."""
        self.reused_tokens = 0
        """Prompt tokens whose KV was there already, trunks included, since the start."""
        self._contexts: dict[str, Context] = {}
        self._trunks: dict[str, Trunk] = {}
        self._closed_trunks: set[Trunk] = set()
        """Trunks that nobody may join, but that some context still builds on."""
        self._now = 0

    @property
    def held_tokens(self) -> int:
        """Entries in kept contexts and trunks, busy ones included."""
        # Copied first: the event loop asks while the worker works.
        runs = [t.run for t in [*self._trunks.values(), *self._closed_trunks]]
        runs += [c.own for c in set(self._contexts.values())]
        return sum(r.length for r in runs)

    def open(self, ids: Ids, hint: CacheHint | None, version: int) -> Context | None:
        """A context for a request of the sequence `ids`, with what is held of it; None when there is no room now."""
        self._now += 1
        key = "" if hint is None else hint.rollout
        kept = self._contexts.get(key)
        if kept is not None:
            common = _common(kept.ids, ids[:-1])
            if common > kept.base:
                context = self._branch(kept, key, common, ids) if kept.users else self._resume(kept, common, ids)
                self.reused_tokens += common if context is not None else 0
                return context
            if kept.users:
                key = ""
            else:
                self._let_go(kept, key)
        trunk = None if hint is None else self._trunk_for(ids, hint, version)
        base = 0 if trunk is None else len(trunk.ids)
        own = self._take(len(ids) - base + HEADROOM, shared=False, keep=trunk)
        if own is None:
            return None
        context = Context(own=own, trunk=trunk)
        if trunk is not None:
            self.reused_tokens += base if trunk.users or trunk.ready else 0
            trunk.users += 1
            trunk.used_at = self._now
        if key:
            self._hold(context, key)
        return context

    def age(self, key: str) -> int | None:
        """Oldest policy version among the entries that are kept for a rollout; None when none are."""
        kept = self._contexts.get(key)
        return None if kept is None else kept.oldest

    def join(self, context: Context, key: str) -> None:
        """One more request with the same tokens works on `context`, for the rollout `key` if it has one."""
        context.users += 1
        self.reused_tokens += context.length
        if key:
            self._hold(context, key)

    def split(self, context: Context, keys: Sequence[str], tokens: int) -> Context | None:
        """A copy of `context` with room for `tokens`, for the requests of `keys`, which leave; None without room."""
        fork = self._copy(context, context.length, tokens)
        if fork is None:
            return None
        context.users -= len(keys)
        fork.users = len(keys)
        for key in context.keys.intersection(keys):
            self._hold(fork, key)
        return fork

    def begin(self, trunk: Trunk, begun: Collection[Trunk]) -> bool:
        """Whether `trunk` may be computed further in this step; `begun` are the trunks that already are.

        Groups often share a system prompt. So an empty trunk first copies the leading entries that another one of its
        version has of the same tokens, and waits while that one is in the making.
        """
        if trunk.run.length:
            return True
        source, most = None, STEM - 1
        for other in self._trunks.values():
            if other.version != trunk.version or not (other.ready or other in begun or other.growing):
                continue
            common = _common(other.ids, trunk.ids)
            if common > most:
                source, most = other, common
        if source is None:
            return True
        if source.run.length < most:
            return False
        self.arena.copy(source.run, trunk.run, most)
        self.reused_tokens += most
        return True

    def grow(self, context: Context, tokens: int) -> bool:
        """Make room for `tokens` entries in all. False when there is none now."""
        own = tokens - context.base
        while not self.arena.move(context.own, own):
            if not self._evict_one():
                return False
        return True

    def leave(self, context: Context, ids: Ids = NO_IDS) -> None:
        """A request is over; keep the entries of `ids`, or what was known before, for the next turns."""
        context.users -= 1
        if len(ids):
            context.ids = ids
        if context.users:
            return
        if not context.keys or context.broken or len(context.ids) <= context.base:
            self._drop(context)
            return
        context.own.truncate(len(context.ids) - context.base)
        self._now += 1
        context.used_at = self._now

    def abandon(self, context: Context) -> None:
        """A request gives up its place; with the last one the entries go."""
        context.users -= 1
        if not context.users:
            self._drop(context)

    def spoil(self, context: Context) -> None:
        """A request failed, the entries may be broken: nobody resumes the context or joins its trunk, rows are cleaned.

        Call it for every request that works on it.
        """
        context.broken = True
        for key in list(context.keys):
            self._forget(context, key)
        trunk = context.trunk
        if trunk is not None:
            trunk.broken = True
            if trunk.open:
                self._close_trunk(trunk)
        self.leave(context)

    def release(self, key: str) -> None:
        """A rollout or a trunk is no longer needed."""
        context = self._contexts.get(key)
        if context is not None:
            self._let_go(context, key)
        trunk = self._trunks.get(key)
        if trunk is not None:
            self._close_trunk(trunk)

    def renew(self, version: int) -> None:
        """The policy is at `version`: trunks of another version take no new members, unused ones go at once.

        A trunk still in the making starts again, so that all its entries have one version.
        """
        for trunk in [t for t in self._trunks.values() if t.version != version]:
            if trunk.ready or not trunk.users:
                self._close_trunk(trunk)
            else:
                trunk.run.truncate(0)
                trunk.version = version

    def relieve(self, excess: int) -> int:
        """Give memory back to the system, evicting what is idle until it is so many bytes; how many it was."""
        freed = self.arena.trim()
        while freed < excess and self._evict_one():
            freed += self.arena.trim()
        return freed

    def forget_idle(self) -> None:
        """Drop every idle context."""
        for context in {c for c in self._contexts.values() if not c.users}:
            self._drop(context)

    def _resume(self, kept: Context, common: int, ids: Ids) -> Context | None:
        """The idle context `kept`, cut to the `common` entries; None when there is no room for the rest now."""
        kept.own.truncate(common - kept.base)
        kept.ids = kept.ids[:common]
        kept.users = 1
        if not self.grow(kept, len(ids)):
            kept.users = 0
            return None
        return kept

    def _branch(self, kept: Context, key: str, common: int, ids: Ids) -> Context | None:
        """A copy of the first `common` entries of a context that others work on."""
        context = self._copy(kept, common, len(ids))
        if context is not None:
            context.ids = ids[:common]
            self._hold(context, key)
        return context

    def _copy(self, source: Context, length: int, tokens: int) -> Context | None:
        """A context with the first `length` entries of `source`, the trunk shared; None when there is no room."""
        own = self._take(max(tokens - source.base, 1) + HEADROOM, shared=False)
        if own is None:
            return None
        self.arena.copy(source.own, own, length - source.base)
        if source.trunk is not None:
            source.trunk.users += 1
        return Context(own=own, trunk=source.trunk, ids=source.ids[:length])

    def _hold(self, context: Context, key: str) -> None:
        """Keep `context` for the rollout `key`, and nothing else."""
        before = self._contexts.get(key)
        if before is not None and before is not context:
            self._let_go(before, key)
        context.keys.add(key)
        self._contexts[key] = context

    def _let_go(self, context: Context, key: str) -> None:
        """The rollout `key` needs `context` no more."""
        self._forget(context, key)
        if not context.keys and not context.users:
            self._drop(context)

    def _forget(self, context: Context, key: str) -> None:
        context.keys.discard(key)
        if self._contexts.get(key) is context:
            del self._contexts[key]

    def _drop(self, context: Context) -> None:
        """Give back what a context holds."""
        for key in list(context.keys):
            self._forget(context, key)
        if context.broken:
            self.arena.scrub(context.own)
        self.arena.give(context.own)
        trunk = context.trunk
        if trunk is not None:
            trunk.users -= 1
            self._settle(trunk)

    def _trunk_for(self, ids: Ids, hint: CacheHint, version: int) -> Trunk | None:
        length = hint.trunk_len - 1
        if not hint.trunk or length < 1 or length >= len(ids):
            return None
        trunk = self._trunks.get(hint.trunk)
        if trunk is not None and trunk.version != version:
            self._close_trunk(trunk)
            trunk = None
        if trunk is not None:
            return trunk if np.array_equal(trunk.ids, ids[:length]) else None
        run = self._take(length, shared=True)
        if run is None:
            return None
        trunk = Trunk(key=hint.trunk, ids=ids[:length].copy(), version=version, run=run)
        self._trunks[hint.trunk] = trunk
        return trunk

    def _take(self, tokens: int, *, shared: bool, keep: Trunk | None = None) -> Run | None:
        while (run := self.arena.take(tokens, shared=shared)) is None:
            if not self._evict_one(keep=keep):
                return None
        return run

    def _evict_one(self, *, keep: Trunk | None = None) -> bool:
        idle: list[Context | Trunk] = [c for c in self._contexts.values() if not c.users]
        idle += [t for t in self._trunks.values() if not t.users and t is not keep]
        if not idle:
            return False
        victim = min(idle, key=lambda x: x.used_at)
        self.evicted += 1
        if isinstance(victim, Context):
            self._drop(victim)
        else:
            self._close_trunk(victim)
        return True

    def _close_trunk(self, trunk: Trunk) -> None:
        trunk.open = False
        if self._trunks.get(trunk.key) is trunk:
            del self._trunks[trunk.key]
        self._closed_trunks.add(trunk)
        self._settle(trunk)

    def _settle(self, trunk: Trunk) -> None:
        if trunk in self._closed_trunks and not trunk.users:
            self._closed_trunks.remove(trunk)
            if trunk.broken:
                self.arena.scrub(trunk.run)
            self.arena.give(trunk.run)


def _common(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
