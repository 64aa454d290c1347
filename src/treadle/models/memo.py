"""The memo: what frozen layers made of a token, kept to be used again instead of computed again.

Where only the top layers of a policy train, the states that enter the lowest of them are a function of the token and
those before it, and of weights that do not change. The engine computes them to sample; the learner needs the same ones
to train, most of its forward goes into them. So whoever computes them puts them here under the name of their context,
and whoever finds all that it needs begins at the boundary.

A context's name is a sum over its tokens of (id + 1) times a random odd number of their position, twice, in 64-bit
arithmetic: names of all prefixes of a sequence are one running sum, and two different contexts have the same name with
a chance of about 2^-126. Nothing is ever needed: what fell out of the ring is computed.

Used in the compute thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Name = bytes
"""Of a context: a token and all before it."""
Sums = NDArray[np.uint64]
"""[n, 2] running sums: the names of n contexts before they are bytes."""
LANES = 2


class Names:
    """Gives contexts their names."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0x7EAD1E)
        self._factors = np.zeros((0, LANES), dtype=np.uint64)

    def sums(self, ids: NDArray[np.integer], *, start: int = 0, before: Sums | None = None) -> Sums:
        """Running sums of `ids`, which stand at positions `start` and on, after a context with the sum `before` [2]."""
        terms = (ids.astype(np.uint64) + np.uint64(1))[:, None] * self._upto(start + len(ids))[start:]
        found: Sums = terms.cumsum(0, dtype=np.uint64)
        return found if before is None else found + before

    def _upto(self, length: int) -> Sums:
        while len(self._factors) < length:  # grown in steps of one size, so that lengths change no factor
            more = self._random.integers(0, 1 << 63, (1024, LANES), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            self._factors = np.concatenate([self._factors, more])
        return self._factors[:length]


class StateMemo:
    """A ring of states by context."""

    def __init__(self, *, tokens: int, width: int, like: Tensor) -> None:
        self.names = Names()
        self.found = 0
        """Tokens whose states were used again."""
        self.missed = 0
        """Tokens that were asked for in vain, or with others that were."""
        self._states = like.new_zeros(tokens, width)
        self._tokens = tokens
        self.clear()

    def clear(self) -> None:
        """Forget all: the weights below the boundary changed."""
        self._places: dict[Name, int] = {}
        self._held: list[Name | None] = [None] * self._tokens
        self._next = 0

    def put(self, sums: Sums, states: Tensor) -> None:
        """Keep states [n, width] under the names of their contexts; what is known stays."""
        names = _bytes(sums)
        fresh = [i for i, name in enumerate(names) if name not in self._places]
        places = []
        for name in (names[i] for i in fresh):
            place, self._next = self._next, (self._next + 1) % len(self._held)
            old = self._held[place]
            if old is not None:
                self._places.pop(old, None)
            self._held[place], self._places[name] = name, place
            places.append(place)
        if places:
            kept = places[-len(self._held) :]  # more than the ring holds: only the last ones stay
            chosen = torch.tensor(fresh[-len(kept) :], device=states.device)
            self._states[torch.tensor(kept, device=states.device)] = states[chosen].detach()

    def take(self, sums: Sums, wanted: NDArray[np.bool_]) -> Tensor | None:
        """States [n, width] of these contexts, or None unless all that are `wanted` are there; others may be zero."""
        places = [self._places.get(name, -1) for name in _bytes(sums)]
        known = np.array(places) >= 0
        if not known[wanted].all():
            self.missed += len(places)
            return None
        self.found += len(places)
        states = self._states[torch.tensor(places, device=self._states.device).clamp_min_(0)]
        if not known.all():
            states[torch.from_numpy(~known).to(states.device)] = 0
        return states


def _bytes(sums: Sums) -> Sequence[Name]:
    found: list[Name] = np.ascontiguousarray(sums).view(f"V{8 * LANES}")[:, 0].tolist()
    return found
