"""Masking: a group without the tokens that are too old to train on.

What is too old stays in the context of what comes after it, and its rollout still votes in the group's baseline; it
only leaves the loss. A segment is as old as its oldest token and the KV entries that it was computed on, so under the
load mode `keep` a rollout that began too early is left out as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from treadle.trajectory.group import Group
from treadle.trajectory.segment import Author, Segment


def masked(group: Group, *, oldest: int) -> Group | None:
    """The group with every action older than version `oldest` as mere context; None when no action is left.

    A group that has nothing so old is returned as it is.
    """
    ages = {segment.id: segment.oldest_version for segment in group.training}
    old = {name for name, version in ages.items() if version is not None and version < oldest}
    if not old:
        return group
    if all(version is None or name in old for name, version in ages.items()):
        return None
    return group.like(segments={name: _context(s) if name in old else s for name, s in group.segments.items()})


def _context(segment: Segment) -> Segment:
    return replace(
        segment, author=Author.ENV, logprobs=None, entropy=None, versions=(), kv_version=None, spans=()
    )
