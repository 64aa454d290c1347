"""Ports: what the rooms above agree on without knowing each other.

`Generate` lies below agents and engines, so the two never meet: an agent holds a `Generate`, an engine is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from treadle.core.messages import Message
from treadle.core.seeds import Stream

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Log-probs and entropy are of the distribution that is drawn from.

    `top_p` and `top_k` narrow it, so that log-probs of a narrowed one are not the model's: for serving and evaluation,
    not for training. No penalties: they would make a token depend on more than its context.
    """

    temperature: float = 1.0
    """0 means greedy. Log-probs are recorded after the division by the temperature (by 1 when greedy)."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability, after `top_k`; 1 takes all."""
    top_k: int = 0
    """Only so many of the likeliest tokens, and those as likely as the last of them; 0 takes all."""
    max_tokens: int = 256
    """Most tokens of one completion, the stop token included."""
    stop_ids: tuple[int, ...] = ()
    """A sampled id among these ends the completion and is kept as its last token."""
    stop_strings: tuple[str, ...] = ()
    """The completion ends with the first token whose text completes one of these; the token is kept."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"sampling.temperature: got {self.temperature}, expected >= 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p: got {self.top_p}, expected a probability in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"sampling.top_k: got {self.top_k}, expected >= 0, where 0 takes all")
        if self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens: got {self.max_tokens}, expected >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheHint:
    """Which KV may be reused. Never needed for correctness: an engine may ignore it."""

    rollout: str
    """KV of earlier turns is kept under this key until `Generate.release`."""
    trunk: str = ""
    """Key of the prompt that a group shares; empty when nothing is shared."""
    trunk_len: int = 0
    """How many leading prompt ids belong to the trunk."""


class Finish(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop id or stop string was sampled."""
    LENGTH = "length"
    """max_tokens was reached."""
    CONTEXT = "context"
    """The model's context was full."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call for tokens."""

    prompt: Ids
    """The whole prompt, int32[P]; always extends what the same rollout sent before, unless it broke."""
    sampling: Sampling
    stream: Stream
    """Token j of the completion is drawn with number j of this stream."""
    cache: CacheHint | None = None
    priority: int = 0
    """Smaller is sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was sampled. All arrays have length T, the number of sampled tokens, the stop id included."""

    ids: Ids
    logprobs: Floats
    """log p(token | context) of the policy that sampled it, after temperature. float32[T]"""
    entropy: Floats
    """Entropy in nats of the distribution each token was drawn from. float32[T]"""
    versions: tuple[tuple[int, int], ...]
    """Run-length policy versions of the tokens: (version, count), counts sum to T."""
    kv_version: int
    """Oldest policy version among the KV entries that the tokens were computed on."""
    finish: Finish

    def __post_init__(self) -> None:
        n = len(self.ids)
        if not (len(self.logprobs) == len(self.entropy) == n == sum([c for _, c in self.versions])):
            raise ValueError(f"completion of {n} ids needs as many logprobs, entropies and versions")

    @property
    def oldest_version(self) -> int:
        """Oldest policy version that this completion depends on, KV included."""
        return min([self.kv_version, *(v for v, _ in self.versions)])


@runtime_checkable
class Generate(Protocol):
    """Ids in, ids out.

    Raises
    ------
    PromptTooLong   the prompt leaves no room for one token
    EngineError     the engine failed; retryable
    A cancelled await frees the request's slot and KV at the next engine step.
    """

    async def generate(self, request: Request) -> Completion:
        """Sample one completion."""
        ...

    def release(self, cache_key: str) -> None:
        """The KV kept under this rollout or trunk key is no longer needed. Unknown keys are ignored."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back, without any template."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; control strings in it stay text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        ...


class Chat(Protocol):
    """A model to ask: judges and user simulators.

    Raises
    ------
    InfraError      the model could not be reached
    """

    async def ask(self, messages: Sequence[Message]) -> str:
        """The model's answer as text."""
        ...


class Clock(Protocol):
    """Time. Real in production, virtual in tests."""

    def now(self) -> float:
        """Seconds on a monotonic scale."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for records that people read."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """Where the weights of a policy version are."""

    version: int
    path: str | None = None
    """Folder of a checkpoint; None when learner and engine share the tensors."""
    checksum: str | None = None
    """Checksum over all tensors; None for shared tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a queue, an engine or a host says about itself."""

    values: dict[str, float] = field(default_factory=dict)
    """Name to number; units stand in the name (`_s`, `_tokens`, `_share`)."""
