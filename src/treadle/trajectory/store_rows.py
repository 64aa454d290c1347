"""Records to rows and back. Every function pair here is an exact inverse: ids, log-probs and rewards bit for bit.

What the world says may hold anything: text that is no Unicode (lone surrogates) is kept with escapes, numbers of numpy
become plain ones. A careless word must not stop a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from treadle.core.events import Event
from treadle.core.outcome import Origin, Outcome, Status
from treadle.trajectory.group import GroupKey, RewardRecord, Rollout
from treadle.trajectory.segment import Author, Segment, Span, Why
from treadle.trajectory.store_schema import PLACES

Row = tuple[Any, ...]
_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
Scalar = TypeVar("Scalar", bound=np.generic)


def place(segment: str, group: str) -> int:
    """Place in its group of a segment id. Raises ValueError for an id that does not belong to the group."""
    head, _, number = segment.rpartition(":")
    if head != group or not number.isdigit() or int(number) >= PLACES:
        raise ValueError(f"segment id {segment!r}: expected {group}:NUMBER below {PLACES}")
    return int(number)


def tail(rollout: str, group: str) -> str:
    """What follows the group in a rollout id. Raises ValueError for an id that does not belong to the group."""
    if not rollout.startswith(f"{group}."):
        raise ValueError(f"rollout id {rollout!r}: expected {group}.INDEX.ATTEMPT")
    return rollout[len(group) + 1 :]


def group_row(key: GroupKey, number: int) -> Row:
    """Row of `groups`."""
    return (number, key.id, key.ticket, _text(key.task), _text(key.family), key.split, key.admitted_version)


def read_key(row: Row) -> GroupKey:
    """Inverse of `group_row`."""
    return GroupKey(id=row[1], ticket=row[2], task=row[3], family=row[4], split=row[5], admitted_version=row[6])


def segment_row(s: Segment, number: int) -> Row:
    """Row of `segments`. What is as usual is NULL."""
    return (
        number * PLACES + place(s.id, s.group),
        None if s.rollout is None else tail(s.rollout, s.group),
        s.author.value,
        s.ids.astype(_INT32, copy=False).tobytes(),
        None if s.parent is None else place(s.parent, s.group),
        None if s.after is None else place(s.after, s.group),
        int(s.turn),
        None if s.logprobs is None else s.logprobs.astype(_FLOAT32, copy=False).tobytes(),
        None if s.entropy is None else s.entropy.astype(_FLOAT32, copy=False).tobytes(),
        _json(s.versions) if s.versions else None,
        None if s.kv_version is None else int(s.kv_version),
        None if s.agent == "main" else s.agent,
        s.why.value,
        _json([(p.kind, p.start, p.end) for p in s.spans]) if s.spans else None,
        None if s.state_key is None else _text(s.state_key),
        None if s.snapshot is None else _text(s.snapshot),
        None if s.tier == "real" else s.tier,
    )


def read_segment(row: Row, group: str) -> Segment:
    """Inverse of `segment_row`."""
    return Segment(
        id=_id(group, row[0] % PLACES),
        group=group,
        rollout=None if row[1] is None else f"{group}.{row[1]}",
        author=Author(row[2]),
        ids=_array(row[3], np.int32),
        parent=None if row[4] is None else _id(group, row[4]),
        after=None if row[5] is None else _id(group, row[5]),
        turn=row[6],
        logprobs=None if row[7] is None else _array(row[7], np.float32),
        entropy=None if row[8] is None else _array(row[8], np.float32),
        versions=tuple((v, count) for v, count in json.loads(row[9] or "[]")),
        kv_version=row[10],
        agent=row[11] or "main",
        why=Why(row[12]),
        spans=tuple(Span(kind, start, end) for kind, start, end in json.loads(row[13] or "[]")),
        state_key=row[14],
        snapshot=row[15],
        tier=row[16] or "real",
    )


def rollout_row(r: Rollout, number: int) -> Row:
    """Row of `rollouts`."""
    o = r.outcome
    return (
        number, tail(r.id, r.group), r.index, r.attempt, _json([place(leaf, r.group) for leaf in r.leaves]),
        *((None, None, None, None) if o is None else (o.status.value, o.origin.value, _text(o.type), _text(o.message))),
        r.reward, _facts(r.rewards), _facts(r.seconds),
        None if r.forked_from is None else tail(r.forked_from, r.group),
        None if r.forked_at is None else place(r.forked_at, r.group),
        1 if r.probe else None,
    )  # fmt: skip


def read_rollout(row: Row, group: str) -> Rollout:
    """Inverse of `rollout_row`; a row of an older file ends before the forks."""
    outcome = None
    forked_from, forked_at, probe = row[12:15] or (None, None, None)
    if row[5] is not None:
        outcome = Outcome(status=Status(row[5]), origin=Origin(row[6]), type=row[7], message=row[8])
    return Rollout(
        id=f"{group}.{row[1]}", group=group, index=row[2], attempt=row[3],
        leaves=tuple(_id(group, at) for at in json.loads(row[4])), outcome=outcome, reward=row[9],
        rewards=json.loads(row[10]), seconds=json.loads(row[11]),
        forked_from=None if forked_from is None else f"{group}.{forked_from}",
        forked_at=None if forked_at is None else _id(group, forked_at), probe=bool(probe),
    )


def reward_row(r: RewardRecord, group: str, number: int) -> Row:
    """Row of `rewards`."""
    return (number, tail(r.rollout, group), place(r.segment, group), _text(r.name), r.value, int(r.train))


def read_reward(row: Row, group: str) -> RewardRecord:
    """Inverse of `reward_row`."""
    return RewardRecord(
        rollout=f"{group}.{row[1]}", segment=_id(group, row[2]), name=row[3], value=row[4], train=bool(row[5])
    )


def event_row(event: Event) -> Row:
    """Row of `events` without its id."""
    return (event.name, event.at, _facts(event.values))


def read_event(row: Row) -> Event:
    """Inverse of `event_row`."""
    return Event(name=row[0], at=row[1], values=json.loads(row[2]))


def _id(group: str, at: int) -> str:
    return f"{group}:{at:05d}"


def _facts(values: Mapping[str, Any]) -> str:
    return _json(dict(values))


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


_json = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
"""One encoder for all: `json.dumps` with options makes one per call."""


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _array(blob: bytes, kind: type[Scalar]) -> NDArray[Scalar]:
    return np.frombuffer(blob, dtype=np.dtype(kind).newbyteorder("<")).astype(kind)
