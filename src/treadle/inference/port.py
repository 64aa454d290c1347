"""The port that every engine offers: `Generate`, new weights, and a word about how busy it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from treadle.core.ports import Generate, Statistics, WeightRef


class LoadMode(StrEnum):
    """What new weights mean for rollouts in flight. A new rollout never sees older KV, whatever the mode."""

    KEEP = "keep"
    """They go on at once; their KV stays and its age is recorded in `Completion.kv_version`."""
    RECOMPUTE = "recompute"
    """They go on at once, and their KV is computed anew under the new weights."""
    DRAIN = "drain"
    """Completions in flight end first; meanwhile nothing new starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignal:
    """How busy an engine is: what a router or a scheduler needs to choose."""

    waiting: int
    """Requests without a slot."""
    running: int
    """Requests with a slot."""
    slots: int
    kv_tokens: int
    """KV entries that running requests, kept rollouts and prompts of groups hold now."""
    kv_budget_tokens: int


class Engine(Generate, Protocol):
    """`Generate` plus weights.

    Raises
    ------
    EngineError     the engine is closed or failed
    WeightMismatch  the weights it has are not those that were published
    DeadlineExceeded  the load took longer than the engine's deadline
    """

    async def load(self, ref: WeightRef, mode: LoadMode = LoadMode.KEEP) -> int:
        """Take published weights; returns the version that tokens sampled from now on carry."""
        ...

    def load_signal(self) -> LoadSignal:
        """How busy the engine is."""
        ...

    def statistics(self) -> Statistics:
        """Counters since the start."""
        ...
