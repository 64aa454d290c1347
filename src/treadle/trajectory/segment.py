"""Segments: runs of tokens with one author, immutable once made.

A segment knows two predecessors. `parent` is *context*: whose last token precedes my first one; rendering, packing
and attention walk it. `after` is *time*: what happened before me; credit walks it. For a plain rollout the two are
the same. They differ after a context break (compaction, stripped thoughts, drift): then `parent` points to where the
new context branches off and `after` to what happened last.

The ids of an engine's completion are stored as sampled and never re-encoded (invariant 1). Who may be trained on is
`author`, set when the segment is made, never read off the text (invariant 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from treadle.core.ports import Floats, Ids

_INT32 = np.dtype(np.int32)


class Author(StrEnum):
    """Who wrote the tokens."""

    ENV = "env"
    """Prompt, observation or bridge: never in the loss."""
    POLICY = "policy"
    """Sampled by the policy: has behaviour log-probs and versions."""
    DEMO = "demo"
    """Written by a demonstrator: trained by imitation, has no log-probs."""


class Why(StrEnum):
    """Why a segment starts where it does."""

    PROMPT = "prompt"
    TURN = "turn"
    FORK = "fork"
    """A sibling in time: competes with its siblings."""
    COMPACT = "compact"
    STRIP = "strip"
    """The template dropped earlier thoughts."""
    DRIFT = "drift"
    """The harness rewrote history."""
    SUBAGENT = "subagent"

    @property
    def breaks(self) -> bool:
        """True when this starts a new context of the same rollout."""
        return self in (Why.COMPACT, Why.STRIP, Why.DRIFT)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..end (exclusive) of a segment that form one part of an action."""

    kind: str
    """`text`, `code`, `call` or `thought`."""
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One run of tokens. Raises ValueError when its columns contradict each other."""

    id: str
    """Unique in the run; ids of one group sort in the order of appending."""
    group: str
    rollout: str | None
    """None for segments that all rollouts of the group share (the prompt)."""
    author: Author
    ids: Ids
    """int32[n], n >= 1."""
    parent: str | None
    """Context predecessor; None for a root."""
    after: str | None
    """Time predecessor; None for what came first."""
    turn: int = 0
    """Number of the assistant turn this belongs to; an observation carries its action's number."""
    logprobs: Floats | None = None
    """Behaviour log-probs, float32[n]; None unless the policy sampled the tokens."""
    entropy: Floats | None = None
    """Nats, float32[n]; None unless the policy sampled the tokens."""
    versions: tuple[tuple[int, int], ...] = ()
    """Run-length policy versions, counts sum to n; empty unless sampled."""
    kv_version: int | None = None
    """Oldest version among the KV blocks the tokens were computed on; None unless sampled."""
    agent: str = "main"
    why: Why = Why.TURN
    spans: tuple[Span, ...] = ()
    state_key: str | None = None
    """Digest of the env state an action was taken in; None when the env gives none."""
    snapshot: str | None = None
    """Snapshot the env can be resumed from after this segment; None when none was taken."""
    tier: str = "real"

    def __post_init__(self) -> None:
        n = len(self.ids)
        sampled = self.author is Author.POLICY
        if n == 0 or self.ids.dtype != _INT32:
            raise ValueError(f"segment {self.id}: got {self.ids.dtype}[{n}], expected int32[n >= 1]")
        if sampled != (self.logprobs is not None) or (self.logprobs is not None and len(self.logprobs) != n):
            raise ValueError(f"segment {self.id}: a policy segment, and no other, has {n} log-probs")
        if sampled and sum([count for _, count in self.versions]) != n:
            raise ValueError(f"segment {self.id}: versions {self.versions} do not cover {n} tokens")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_action(self) -> bool:
        """Whether a policy or a demonstrator wrote this."""
        return self.author is not Author.ENV

    @property
    def oldest_version(self) -> int | None:
        """Oldest version the sampled tokens depend on, KV included; None unless sampled."""
        if self.author is not Author.POLICY:
            return None
        seen = [version for version, _ in self.versions]
        return min(seen if self.kv_version is None else [self.kv_version, *seen])
