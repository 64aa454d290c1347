"""One prefix cache: a radix tree over token ids. What is held for whom, and what goes when memory is short.

A `Node` has the KV of consecutive tokens, and its children continue it: the path from the root to a node is one
sequence. The prompt of a group, the turns of a rollout, the forks of a tree and a system prompt that groups share are
all nodes. A request walks to the longest beginning of its tokens that is there, or that somebody is about to compute,
and gets a node of its own below: its *tip*, the only kind that grows. Requests with the same tokens work on one tip.
Where a walk ends inside a node, the node is cut in two where it lies, and no entry is copied. Only beginnings shorter
than `SHARE` are copied, because reading a node is an attention level of its own in every step: for the same reason a
group's prompt, which its members announce, is a node whatever its length.

A node lives as long as somebody needs it: a request that works on it, a rollout that it is kept for between two turns,
a group whose prompt it is, or a child. Every entry has the policy version that computed it. A request takes over
entries of the version of now, or, for a rollout that continues, none older than those kept for it. Entries that may be
broken are never taken over.

Everything here is a saving, never needed for a right answer: what is held may vanish between two requests and is
computed anew. When the arena is full, the leaf that is expected to be needed last goes first (see `absence`), of those
expected alike the one that was used longest ago. All methods are called by the worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from treadle.core.ports import CacheHint, Clock, Ids
from treadle.inference.absence import Absences
from treadle.inference.arena import Arena, Run

NO_IDS: Ids = np.zeros(0, dtype=np.int32)
SHARE = 128
"""Fewest entries of a node that are worth a level of attention to those who share them; fewer are copied. Two who share
are even at 128 to 500 entries, eight at 32 to 128, on a core with 9 heads of 64."""
STEM = 16
"""Fewest tokens that are waited for while somebody else computes them."""
HEADROOM = 32
"""Entries beyond the known tokens that a new tip has room for, so that it does not move at once."""


@dataclass(slots=True, eq=False)
class Node:
    """KV of consecutive tokens, after those of the nodes above."""

    run: Run
    parent: Node | None
    """None for the root, which has no entries."""
    start: int
    """Position of its first token."""
    ids: Ids
    """The whole sequence from position 0 on, as far as it is known; a tip's are its request's own."""
    planned: int = 0
    """Tokens that it had when it was made, whether their entries are there or not."""
    floor: int = 0
    """Oldest version of entries that it may take over."""
    kept: int = 0
    """Length of the sequence to go back to when the requests on it are given up; 0 for one that began with them."""
    keys: set[str] = field(default_factory=set)
    """Rollouts that it is kept for between their requests."""
    groups: set[str] = field(default_factory=set)
    """Groups whose prompt it ends."""
    users: int = 0
    """Requests that work on it: it is their tip."""
    children: list[Node] = field(default_factory=list)
    broken: bool = False
    """Its entries may not be finite: nobody takes them over, and their place is cleaned."""
    used_at: int = 0

    @property
    def size(self) -> int:
        """Tokens, computed or about to be."""
        return max(self.planned, self.run.length)

    @property
    def length(self) -> int:
        """Entries of the sequence up to here, those above counted whole."""
        return self.start + self.run.length

    @property
    def ready(self) -> bool:
        """Whether every entry is there."""
        return self.run.length >= self.planned

    @property
    def growing(self) -> bool:
        """Whether some entries are there and somebody waits for the others."""
        return 0 < self.run.length < self.planned and bool(self.users or self.children)

    @property
    def above(self) -> list[Node]:
        """The nodes of its path before it, from the first on."""
        nodes: list[Node] = []
        node = self.parent
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def oldest(self) -> int | None:
        """Oldest policy version among the entries of its path; None when there are none."""
        found = [node.run.oldest for node in (*self.above, self)]
        return min((version for version in found if version is not None), default=None)

    def fit(self, ids: Ids, floor: int) -> int:
        """How many of its tokens go on like the sequence `ids`, with no entry older than `floor`."""
        size = self.size
        if self.users and not self.ready:
            size -= 1  # whoever works on it computes the last token for what comes after
        if self.broken or size <= 0 or len(ids) <= self.start or ids[self.start] != self.ids[self.start]:
            return 0
        count = _common(self.ids[self.start : self.start + size], ids[self.start :])
        seen = 0
        for version, entries in self.run.versions:
            if version < floor:
                return min(count, seen)
            seen += entries
        return count


class KvCache:
    """The tree, and who needs what of it."""

    def __init__(self, arena: Arena, clock: Clock) -> None:
        self.arena = arena
        self.absences = Absences(clock)
        self.evicted = 0
        """Nodes dropped for want of room since the start."""
        self.reused_tokens = 0
        """Prompt tokens whose KV was there already, or was on its way, since the start."""
        self._root = Node(run=Run(row=0, capacity=0, shared=True, limit=0), parent=None, start=0, ids=NO_IDS)
        self._nodes: set[Node] = set()
        """All but the root."""
        self._kept: dict[str, Node] = {}
        """By rollout."""
        self._prompts: dict[str, Node] = {}
        """By group."""
        self._now = 0

    @property
    def held_tokens(self) -> int:
        """Entries held."""
        # Copied first: the event loop asks while the worker works.
        return sum(node.run.length for node in list(self._nodes))

    def age(self, key: str) -> int | None:
        """Oldest policy version among the entries that are kept for a rollout; None when none are."""
        kept = self._kept.get(key)
        return None if kept is None else kept.oldest

    def open(self, ids: Ids, hint: CacheHint | None, version: int) -> Node | None:
        """A tip for a request of the sequence `ids`, below what is held of it; None when there is no room now."""
        key = "" if hint is None else hint.rollout
        age = self.age(key)
        floor = version if age is None else age
        node, count = self._walk(self._root, ids[:-1], floor, key)
        alone = node.keys == {key} and not (node.users or node.children or node.groups)
        if alone:
            count = min(count, node.run.length)  # nobody computes the rest any more
        kept = reused = node.start + count
        if alone:
            tip = self._resume(node, count, ids)
        else:
            if count < node.size or not _may_continue(node):
                node = self._cut(node, count) if count >= SHARE else _parent(node)
            reused = min(reused, node.start + node.size)
            tip = self._seat(node, ids, hint, floor)
        if tip is None and not any(other.users for other in self._nodes):
            reused, tip = 0, self._seat(self._root, ids, None, floor)  # what it would build on leaves no room for it
        if tip is None:
            return None
        self.reused_tokens += reused
        tip.kept = 0 if age is None else kept
        for new in (*tip.above, tip):
            self.begin(new, ())  # before what it copies from may go
        if key:
            self._hold(tip, key)
        return tip

    def join(self, tip: Node, key: str) -> None:
        """One more request with the same tokens works on `tip`, for the rollout `key` if it has one."""
        tip.users += 1
        self.reused_tokens += tip.length
        if key:
            self._hold(tip, key)

    def part(self, tip: Node, keys: Collection[str], ids: Ids) -> Node | None:
        """A tip for the requests of `keys`, which go on with `ids` instead of like `tip`; None without room."""
        at, length = _parent(tip), tip.run.length
        if length >= SHARE:
            at, length = self._cut(tip, length), 0
        fork = self._add(at, ids, tokens=len(ids) - at.start - at.size + HEADROOM, shared=False, floor=tip.floor)
        if fork is None:
            return None
        self.arena.copy(tip.run, fork.run, length)
        tip.users -= len(keys)
        fork.users, fork.kept = len(keys), tip.kept
        for key in tip.keys.intersection(keys):
            self._hold(fork, key)
        return fork

    def begin(self, node: Node, begun: Collection[Node]) -> bool:
        """Whether `node` may be computed further in this step; `begun` are those that already are.

        An empty node first copies the leading entries that a neighbour has of the same tokens, and waits while the
        neighbour is in the making.
        """
        if node.run.length:
            return True
        wanted = node.ids[: node.start + node.planned - (1 if node.users else 0)]
        source, most = None, 0
        for other in _parent(node).children:
            count = 0 if other is node else other.fit(wanted, node.floor)
            if not (count >= STEM and (other in begun or other.growing)):
                count = min(count, other.run.length)
            if count > most:
                source, most = other, count
        if source is None:
            return True
        if source.run.length < most:
            return False
        self.arena.copy(source.run, node.run, most)
        self.reused_tokens += most
        return True

    def grow(self, tip: Node, tokens: int) -> bool:
        """Make room for the entries of a sequence of `tokens`. False when there is none now."""
        while not self.arena.move(tip.run, tokens - tip.start):
            if not self._evict_one():
                return False
        return True

    def leave(self, tip: Node, ids: Ids = NO_IDS) -> None:
        """A request is over; keep the entries of `ids`, or what was kept before, for the next turns."""
        tip.users -= 1
        if len(ids):
            tip.ids, tip.kept = ids, len(ids)
        if tip.users:
            return
        for key in list(tip.keys) if 0 < tip.kept <= tip.start and not tip.broken else ():
            self._hold(_parent(tip), key)  # what was kept lies above
        if not tip.keys or tip.broken or not tip.kept:
            self._give_up(tip)
            return
        tip.planned = min(tip.kept - tip.start, tip.run.length)
        tip.run.truncate(tip.planned)
        self._now += 1
        tip.used_at = self._now

    def abandon(self, tip: Node) -> None:
        """A request gives up its place; with the last one the entries go."""
        tip.users -= 1
        if not tip.users:
            self._give_up(tip)

    def spoil(self, tip: Node) -> None:
        """A request failed, all that it has seen may be broken: nobody takes it over, and its place is cleaned.

        Call it for every request that works on it.
        """
        for node in (*tip.above, tip):
            node.broken = True
            for group in list(node.groups):
                self._let_go(group, self._prompts)
        self.leave(tip)

    def release(self, key: str) -> None:
        """A rollout or a group is over."""
        self.absences.forget(key)
        self._let_go(key, self._kept)
        self._let_go(key, self._prompts)

    def renew(self, version: int) -> None:
        """The policy is at `version`: prompts of another version go as soon as nobody builds on them."""
        for group, node in list(self._prompts.items()):
            if node.floor != version:
                self._let_go(group, self._prompts)

    def relieve(self, excess: int) -> int:
        """Give memory back to the system, evicting what is idle until it is so many bytes; how many it was."""
        freed = self.arena.trim()
        while freed < excess and self._evict_one():
            freed += self.arena.trim()
        return freed

    def forget_idle(self) -> None:
        """Drop what is kept for rollouts between their requests."""
        for key, node in list(self._kept.items()):
            if not node.users:
                self._let_go(key, self._kept)

    def _walk(self, node: Node, ids: Ids, floor: int, key: str) -> tuple[Node, int]:
        """The node from `node` on that reaches farthest along `ids`, and how many of its tokens do.

        Of several that reach equally far, that which is kept for the rollout `key`.
        """
        found = [(node, node.size)]
        for child in node.children:
            if count := child.fit(ids, floor):
                found.append(self._walk(child, ids, floor, key) if count == child.size else (child, count))
        return max(found, key=lambda f: (f[0].start + f[1], key in f[0].keys))

    def _resume(self, tip: Node, count: int, ids: Ids) -> Node | None:
        """The idle `tip`, cut to `count` entries, for its rollout; None when there is no room for the rest now."""
        tip.run.truncate(count)
        tip.ids, tip.planned, tip.users = ids, len(ids) - tip.start, 1
        if self.grow(tip, len(ids)):
            return tip
        tip.users, tip.planned = 0, count
        return None

    def _seat(self, node: Node, ids: Ids, hint: CacheHint | None, floor: int) -> Node | None:
        """A tip for `ids` below `node`, and between them the rest of a group's prompt; None without room."""
        group, ends = ("", 0) if hint is None else (hint.trunk, hint.trunk_len - 1)
        prompt: Node | None = None
        if group and node.start + node.size < ends < len(ids):
            tokens = ends - node.start - node.size
            prompt = self._add(node, ids, tokens=tokens, shared=True, floor=floor)
            if prompt is None:
                return None
            prompt.planned = tokens
        elif group and node.start + node.size == ends:
            prompt = node
        below = prompt or node
        tip = self._add(below, ids, tokens=len(ids) - below.start - below.size + HEADROOM, shared=False, floor=floor)
        if tip is None:
            return None
        tip.planned, tip.users = len(ids) - tip.start, 1
        if prompt is not None and group not in self._prompts and prompt.parent is not None:
            self._prompts[group] = prompt
            prompt.groups.add(group)
        self._now += 1
        below.used_at = self._now
        return tip

    def _add(self, parent: Node, ids: Ids, *, tokens: int, shared: bool, floor: int) -> Node | None:
        """An empty child of `parent` with room for `tokens`; None when there is no room now."""
        parent.users += 1  # not evicted meanwhile
        while (run := self.arena.take(tokens, shared=shared)) is None:
            if not self._evict_one():
                break
        parent.users -= 1
        if run is None:
            self._settle(parent)
            return None
        node = Node(run=run, parent=parent, start=parent.start + parent.size, ids=ids, floor=floor)
        parent.children.append(node)
        self._nodes.add(node)
        return node

    def _cut(self, node: Node, at: int) -> Node:
        """Cut `node` in two: its first `at` tokens become a node of their own above it."""
        parent, planned = _parent(node), node.size
        head = Node(
            run=self.arena.split(node.run, at), parent=parent, start=node.start, ids=node.ids, planned=at,
            floor=node.floor, children=[node], broken=node.broken, used_at=node.used_at,
        )
        parent.children[parent.children.index(node)] = head
        self._nodes.add(head)
        node.parent, node.start, node.planned = head, node.start + at, planned - at
        if not node.run.length:
            # Nothing to copy: in a row of its own it stands beside others in one product.
            fresh = self.arena.take(node.planned + HEADROOM, shared=node.run.shared)
            if fresh is not None:
                self.arena.give(node.run)
                node.run = fresh
        return head

    def _hold(self, node: Node, key: str) -> None:
        """Keep `node` for the rollout `key`, and nothing else."""
        before = self._kept.get(key)
        if before is node:
            return
        node.keys.add(key)
        self._let_go(key, self._kept)
        self._kept[key] = node

    def _let_go(self, key: str, held: dict[str, Node]) -> None:
        """A rollout or a group needs no more what is held for it."""
        node = held.pop(key, None)
        if node is not None:
            (node.keys if held is self._kept else node.groups).discard(key)
            self._settle(node)

    def _give_up(self, node: Node) -> None:
        """Nobody needs this node any more."""
        for key in list(node.keys):
            self._let_go(key, self._kept)
        for group in list(node.groups):
            self._let_go(group, self._prompts)
        self._settle(node)

    def _settle(self, node: Node) -> None:
        """Give back this node if nobody needs it, then those above it that nobody needs any more."""
        while node.parent is not None and not (node.users or node.keys or node.groups or node.children):
            if node not in self._nodes:
                return
            self._nodes.remove(node)
            if node.broken:
                self.arena.scrub(node.run)
            self.arena.give(node.run)
            node.parent.children.remove(node)
            node = node.parent

    def _evict_one(self) -> bool:
        idle = [node for node in self._nodes if not (node.users or node.children)]
        if not idle:
            return False
        self.evicted += 1
        self._give_up(max(idle, key=lambda n: (self.absences.until(n.keys, n.groups), -n.used_at)))
        return True


def _parent(node: Node) -> Node:
    """The node above; the root is above itself."""
    return node if node.parent is None else node.parent


def _may_continue(node: Node) -> bool:
    """Whether a node that is wholly wanted gets a child rather than a copy."""
    return node.parent is None or (not node.users and bool(node.children or node.groups or node.size >= SHARE))


def _common(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
