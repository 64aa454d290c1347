"""Snapshots: the states that live episodes can be resumed from, and the store that bounds what they take.

    Host.snapshot() --hold--> SnapshotStore --Snapshot--> Host.resume() on fresh hosts, as often as wanted --> release()

A snapshot is a small frozen record with an id; what it stands for lies in the store until it is released. Everything is
in memory, nothing on a disk, so a run that dies leaves nothing behind. What files hold is kept by content: equal
contents are one, counted by the snapshots that name them, so that a fork of a fork costs only what changed.

The store never fails a rollout. What does not fit is refused and counted: whoever asked gets None and goes on without a
fork. That a class of environment cannot be forked, and that a bound was met, is said once. Used from one event loop.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeVar

from treadle.core.errors import ConfigError
from treadle.core.ports import Statistics
from treadle.envs.env import Fork

T = TypeVar("T")
MIB = 1 << 20
MOST_WEIGHED = 200_000
"""Objects of one state that are looked at to tell its size; what is beyond is not counted."""
_BOUNDS = {"count": "most", "bytes": "most_bytes"}
"""Reasons of refusals to the key of the bound that was met."""
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)
"""Shared by everybody, and no part of a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsConfig:
    """How much snapshots may take. Raises ConfigError for bounds below 1."""

    most: int = 4096
    """Most snapshots that are held at a time; more are refused."""
    most_bytes: int = 512 * MIB
    """Most memory of all that are held, in bytes; what would go beyond is refused."""

    def __post_init__(self) -> None:
        for name in ("most", "most_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"snapshots.{name}: got {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Contents:
    """What files hold, by digest. Never changes, so a copy of it is itself. The store keeps equal contents once."""

    by_digest: dict[bytes, bytes] = field(default_factory=dict)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Contents:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state that an episode can be resumed from."""

    id: str
    """Unique in the run, and the same when the run is played again."""
    level: Fork
    bytes: int
    """Memory that holding it added; contents that another snapshot holds already are not in it."""
    trail: str | None = None
    """Key of the call history in hexadecimal digits, for cassettes; None without one."""
    store: SnapshotStore = field(repr=False, compare=False)

    def release(self) -> None:
        """Free it. Idempotent. Episodes that were resumed from it are not touched."""
        self.store.release(self.id)

    def forked(self) -> int:
        """Number of the next fork, from 1: for those who have no name."""
        return self.store.forked(self.id)

    def state(self, kind: type[T]) -> T:
        """What was held. Raises RuntimeError after the release, or when another kind of host made it."""
        found = self.store.find(self.id)
        if not isinstance(found, kind):
            what = "was released" if found is None else f"holds a {type(found).__name__}, expected a {kind.__name__}"
            raise RuntimeError(f"snapshot {self.id}: it {what}")
        return found


@dataclass(slots=True)
class _Held:
    state: object
    size: int
    """Bytes of the state alone, without contents."""
    digests: tuple[bytes, ...]
    forks: int = 0
    """Unnamed forks that were begun from it."""


class SnapshotStore:
    """Holds what snapshots stand for, within bounds."""

    def __init__(self, config: SnapshotsConfig | None = None, *, say: Callable[[str], None] | None = None) -> None:
        """`say` takes one line for a person, once per class of environment that cannot be forked, and per bound."""
        self.config = config or SnapshotsConfig()
        self.say = say
        self._held: dict[str, _Held] = {}
        self._contents: dict[bytes, tuple[bytes, int]] = {}
        """Digest to content and how many snapshots name it."""
        self._said: set[str] = set()
        self._refused: Counter[str] = Counter()
        self._bytes = self._peak_bytes = self._peak_held = self._taken = self._freed = self._unnamed = 0

    def hold(self, name: str, state: object, *, level: Fork, shared: tuple[object, ...] = ()) -> Snapshot | None:
        """Keep a state, which nobody may change any more; None when it does not fit.

        `name` becomes the id, with a number behind it when it is taken; an empty one gets a name of the store's. What
        is `shared` with the rest of the run is no part of its size.
        """
        own, carriers = weighed(state, shared=shared)
        named = {digest: content for carrier in carriers for digest, content in carrier.by_digest.items()}
        added = own + sum(len(content) for digest, content in named.items() if digest not in self._contents)
        if len(self._held) >= self.config.most:
            self.refuse("count")
            return None
        if self._bytes + added > self.config.most_bytes:
            self.refuse("bytes")
            return None
        for digest, content in named.items():
            kept, count = self._contents.get(digest, (content, 0))
            self._contents[digest] = (kept, count + 1)
        for carrier in carriers:
            carrier.by_digest.update((digest, self._contents[digest][0]) for digest in tuple(carrier.by_digest))
        id_ = self._free_id(name)
        self._held[id_] = _Held(state, own, tuple(named))
        self._bytes += added
        self._taken += 1
        self._peak_bytes = max(self._peak_bytes, self._bytes)
        self._peak_held = max(self._peak_held, len(self._held))
        return Snapshot(id=id_, level=level, bytes=added, store=self)

    def refuse(self, reason: str, *, kind: str = "") -> None:
        """Count why no snapshot was made. `kind` names a class of environment that cannot be forked at all."""
        self._refused[reason] += 1
        if kind:
            self._say(kind, f"{kind} cannot be forked (fork={Fork.NONE}): its groups get independent rollouts instead")
        if (key := _BOUNDS.get(reason)) is not None:
            self._say(key, (
                f"snapshots.{key}={getattr(self.config, key)} leaves no room for another snapshot: independent "
                f"rollouts take the place of forks, and where depends on timing; raise snapshots.{key}"
            ))

    def release(self, id_: str) -> None:
        """Free one. Idempotent."""
        held = self._held.pop(id_, None)
        if held is None:
            return
        self._freed += 1
        self._bytes -= held.size
        for digest in held.digests:
            content, count = self._contents.pop(digest)
            if count > 1:
                self._contents[digest] = (content, count - 1)
            else:
                self._bytes -= len(content)

    def forked(self, id_: str) -> int:
        """Count an unnamed fork of one; its number, from 1."""
        self._held[id_].forks += 1
        return self._held[id_].forks

    def find(self, id_: str) -> object | None:
        """What one stands for; None once it is released."""
        held = self._held.get(id_)
        return None if held is None else held.state

    def statistics(self) -> Statistics:
        """What it holds, the most it held, and what it has done; refusals are `snapshots_refused.REASON`."""
        figures = {
            "held": len(self._held), "bytes": self._bytes, "peak_held": self._peak_held, "peak_bytes": self._peak_bytes,
            "taken": self._taken, "freed": self._freed,
        } | {f"refused.{reason}": count for reason, count in sorted(self._refused.items())}
        return Statistics(values={f"snapshots_{name}": value for name, value in figures.items()})

    def used(self) -> dict[str, float]:
        """Its statistics, for reports; nothing when nobody asked for a snapshot."""
        return dict(self.statistics().values) if self._taken or self._refused else {}

    def _say(self, what: str, line: str) -> None:
        """Say a line once."""
        if what not in self._said:
            self._said.add(what)
            if self.say is not None:
                self.say(line)

    def _free_id(self, name: str) -> str:
        if not name.partition("@")[0]:
            self._unnamed += 1
            name = f"unnamed-{self._unnamed}{name}"
        number, id_ = 1, name
        while id_ in self._held:
            number += 1
            id_ = f"{name}+{number}"
        return id_


def weighed(state: object, *, shared: tuple[object, ...] = ()) -> tuple[int, list[Contents]]:
    """About how many bytes a state takes, contents and what is shared aside, and the contents that it names."""
    size, carriers = 0, list[Contents]()
    for one in _reachable(state, {id(one) for one in shared}):
        if isinstance(one, Contents):
            carriers.append(one)
        with suppress(Exception):  # the border to user code: what cannot say its size has none
            size += one.__sizeof__()
    return size, carriers


def _reachable(state: object, seen: set[int]) -> Iterator[object]:
    """The objects of a state, each once, without those that were seen."""
    left = [state]
    while left and len(seen) < MOST_WEIGHED:
        one = left.pop()
        yield one
        if isinstance(one, Contents):
            continue
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, _CODE):
                seen.add(id(other))
                left.append(other)
