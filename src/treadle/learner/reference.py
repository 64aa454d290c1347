"""The reference policy: the weights that reinforcement learning began with, for a KL penalty.

`FrozenReference` is a second model, loaded from a folder when it is first asked: it holds the weights once more, in the
policy's own format, and nothing else, no gradients and no moments. `AdaptersOff` holds nothing: where only adapters
train, the reference is the policy without them, for the length of one pack in the compute thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor

from treadle.learner.config import LearnerConfig
from treadle.learner.pack import PackedBatch
from treadle.learner.scoring import Scorer
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest


class Reference(Protocol):
    """Log-probs of a policy that does not change."""

    def logprobs(self, forest: Forest, *, budget_tokens: int) -> Column:
        """[T] on the tokens of actions; NaN elsewhere. Raises ModelError when there is no such model."""
        ...


class FrozenReference:
    """A copy of weights."""

    def __init__(self, folder: Path, config: LearnerConfig, *, dtype: str, compute_dtype: str | None = None) -> None:
        """`dtype` and `compute_dtype` are the policy's, so that a policy that has not moved differs by nothing."""
        self.folder = folder
        self._config = config
        self._dtype, self._compute_dtype = dtype, compute_dtype
        self._scorer: Scorer | None = None

    def logprobs(self, forest: Forest, *, budget_tokens: int) -> Column:
        """[T] on the tokens of actions."""
        if self._scorer is None:
            policy = Policy.load(self.folder, dtype=self._dtype, compute_dtype=self._compute_dtype)
            policy.module.requires_grad_(False)
            self._scorer = Scorer(policy, self._config)
        return self._scorer.logprobs(forest, budget_tokens=budget_tokens)


class AdaptersOff(Scorer):
    """The policy below its adapters."""

    def states(self, batch: PackedBatch, *, size: int, behind: bool = False) -> Tensor:
        """Last hidden states [T, hidden] without adapters and gradients. In the compute thread."""
        adapters = self.policy.adapters
        assert adapters is not None, "made for a policy with adapters"
        with adapters.off():
            return super().states(batch, size=size, behind=behind)
