"""The context of one rollout: ids that are only ever appended to.

They lie in a buffer that doubles, so that a turn copies what is new and not what was said before. What was handed out
stays as it is: ids behind its end are written, never those in it.
"""

from __future__ import annotations

import numpy as np

from treadle.core.ports import Ids

SPARE = 512
"""Ids that fit behind a prompt at first."""


class Context:
    """Ids of one rollout so far."""

    __slots__ = ("_buffer", "_length")

    def __init__(self, ids: Ids) -> None:
        """Begin with a copy of these."""
        self._buffer: Ids = np.empty(len(ids) + SPARE, np.int32)
        self._length = 0
        self.append(ids)

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Ids:
        """All of them, int32[n]; not to be written to."""
        return self._buffer[: self._length]

    def append(self, ids: Ids) -> None:
        """Put these behind them."""
        end = self._length + len(ids)
        if end > len(self._buffer):
            grown = np.empty(2 * end, np.int32)
            grown[: self._length] = self.ids
            self._buffer = grown
        self._buffer[self._length : end] = ids
        self._length = end
