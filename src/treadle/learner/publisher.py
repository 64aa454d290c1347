"""The publisher: where a learner leaves its weights for engines that copy them.

Each publish writes a new folder beside the last one, and first removes what was there before that, so the disk holds
two versions at most. The last one stays because an engine has it until it is loaded with the new one: a process that
ends in between is started again with it. What an engine still has mapped stays readable.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from treadle.core.folders import discard
from treadle.core.ports import WeightRef
from treadle.models.policy import Policy
from treadle.models.published import publish


class Publisher:
    """Owns one folder. A context manager: leaving it removes the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: Path | None = None
        """What was published last."""

    def publish(self, policy: Policy) -> WeightRef:
        """Write the weights of now. Blocking. Raises StoreError when the disk refuses."""
        target = self.folder / f"version-{policy.version:06d}"
        for other in self.folder.glob("version-*"):
            if other != self._last:
                discard(other)
        ref = publish(policy, target)
        self._last = target
        return ref

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
