"""Named, counter-based random streams.

A stream is a name (run seed, ticket, rollout path, attempt, turn, purpose) hashed to a Philox key; number i of a
stream depends on the name and on i alone. So a token's noise never depends on what else was in the batch, an
interrupted rollout draws the same numbers when it is played again, and no stream is ever advanced by hand.
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Part = str | int


@dataclass(frozen=True, slots=True)
class Stream:
    """One named stream. `Stream(7).at("ticket", 3).at("turn", 0)`; equal names give equal numbers."""

    seed: int
    """The run's seed."""
    path: tuple[Part, ...] = ()
    _key: int | None = field(default=None, compare=False, repr=False)
    """128-bit Philox key, computed from seed and path when it is first asked for: most streams only name others."""

    def at(self, *parts: Part) -> Stream:
        """The child stream under these name parts."""
        return Stream(self.seed, (*self.path, *parts))

    @property
    def key(self) -> int:
        """128-bit key of this stream."""
        if self._key is None:
            text = "\x1f".join(f"{type(p).__name__}:{p}" for p in (self.seed, *self.path))
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            object.__setattr__(self, "_key", int.from_bytes(digest, "little"))
        assert self._key is not None
        return self._key

    def uniforms(self, start: int, count: int) -> NDArray[np.float64]:
        """Numbers start .. start+count-1 of this stream, each in [0, 1). Shape [count]."""
        first, skip = divmod(start, 4)
        bits = np.random.Philox(key=self.key, counter=first).random_raw(skip + count)[skip:]
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def uniform(self, index: int) -> float:
        """Number `index` of this stream, in [0, 1)."""
        return float(self.uniforms(index, 1)[0])

    def python(self) -> random.Random:
        """A `random.Random` that starts from this stream's key: for environments and task generators."""
        return random.Random(self.key)

    def numpy(self) -> np.random.Generator:
        """A numpy generator that starts from this stream's key."""
        return np.random.Generator(np.random.Philox(key=self.key))
