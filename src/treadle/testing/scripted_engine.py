"""An engine that says what a script says: for tests of everything above `Generate`.

It keeps the contract of a real one where that can be tested without a model: versions per token (a load in the middle
of a completion splits it), the age of the KV that a rollout keeps, cancellation, release. Time passes through the
clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.core.clock import SystemClock
from treadle.core.ports import Clock, Completion, Finish, Floats, Request, Statistics, WeightRef
from treadle.testing.byte_renderer import END

Said = str | Exception
"""Text of one turn, without the end id; or what the engine raises instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a script function is asked about."""

    request: Request
    rollout: str
    """The rollout's key; empty when the request has no cache hint."""
    number: int
    """How many completions this rollout got before."""


_MOST = 1 << 13
_LOGPROB, _ENTROPY = np.full(_MOST, -0.5, np.float32), np.full(_MOST, 0.5, np.float32)
"""What completions of usual length take a part of."""

Script = Sequence[Said] | Callable[[Turn], Said]
"""Turn k of every rollout says entry k (the last entry repeats), or what the function returns."""


class ScriptedEngine:
    """Satisfies `inference.Engine` for byte ids."""

    def __init__(
        self, script: Script, *, clock: Clock | None = None, latency: Callable[[Turn], float] = lambda turn: 0.0,
        encode: Callable[[str], Sequence[int]] = lambda text: text.encode(), end_id: int = END, version: int = 0,
    ) -> None:
        self._script = script
        self._clock = clock or SystemClock()
        self._latency = latency
        """Seconds that a completion takes."""
        self._encode = encode
        self._end_id = end_id
        self.version = version
        self.requests: list[Request] = []
        """Every request, in order of arrival."""
        self.released: list[str] = []
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self._turns: defaultdict[str, int] = defaultdict(int)
        self._kv: dict[str, int] = {}

    async def generate(self, request: Request) -> Completion:
        """The script's next words, cut at `max_tokens`."""
        rollout = request.cache.rollout if request.cache else ""
        turn = Turn(request=request, rollout=rollout, number=self._turns[rollout])
        self._turns[rollout] += 1
        self.requests.append(request)
        began = self.version
        kv = self._kv.setdefault(rollout, began) if rollout else began
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        finished = False
        try:
            await self._clock.sleep(self._latency(turn))
            finished = True
        finally:
            self.running -= 1
            self.cancelled += not finished
        said = self._script(turn) if callable(self._script) else self._script[min(turn.number, len(self._script) - 1)]
        if isinstance(said, Exception):
            raise said
        return self._completion(said, request.sampling.max_tokens, began=began, kv=kv)

    def release(self, cache_key: str) -> None:
        """Forget what the key holds."""
        self.released.append(cache_key)
        self._kv.pop(cache_key, None)

    async def load(self, ref: WeightRef, mode: object = None) -> int:
        """Tokens from now on carry this version."""
        self.version = ref.version
        return self.version

    def statistics(self) -> Statistics:
        """Counters since the start."""
        return Statistics(values={"requests": len(self.requests), "running": self.running})

    def _completion(self, text: str, most: int, *, began: int, kv: int) -> Completion:
        ids = np.asarray([*self._encode(text), self._end_id], dtype=np.int32)
        finish = Finish.STOP if len(ids) <= most else Finish.LENGTH
        ids = ids[:most]
        n, half = len(ids), len(ids) // 2
        changed = self.version != began and half > 0
        versions = ((began, half), (self.version, n - half)) if changed else ((self.version, n),)
        return Completion(
            ids=ids, logprobs=_same(_LOGPROB, n), entropy=_same(_ENTROPY, n), versions=versions, kv_version=kv,
            finish=finish,
        )


def _same(value: Floats, n: int) -> Floats:
    """`n` times the one number of an array."""
    return value[:n] if n <= len(value) else np.full(n, value[0], np.float32)
