"""The trainer: from a batch of groups to a new policy version, and the thread that it runs in.

The pipeline knows a `Trainer`; `LearnerTrainer` is the one that owns no cleverness: forest, notes, credit, packs,
one update of the learner. Everything here blocks for seconds, so the pipeline calls it through a `BlockingThread`: one
thread, one call at a time, each with a name and a deadline, while the event loop goes on serving environments and
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from treadle.agents.deadline import deadline
from treadle.algorithms.aggregation import Aggregation
from treadle.algorithms.credit import PATH_SUM, CreditRule
from treadle.algorithms.shared import Shared
from treadle.core.errors import ConfigError, one_line
from treadle.core.ports import WeightRef
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group

if TYPE_CHECKING:  # both need torch, which must not be loaded to look at a pipeline
    from treadle.algorithms.loss import Loss
    from treadle.algorithms.objective import Objective
    from treadle.learner.learner import Learner
    from treadle.learner.process_reward import ProcessReward

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What one update did."""

    version: int
    """Policy version after it."""
    loss: float
    grad_norm: float
    lr: float
    tokens_trained: int
    seconds: float
    skipped: bool = False
    """True when the weights stayed as they were: nothing to train, or a gradient that was not finite."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """What the loss reports, by name."""
    skew_mean: float | None = None
    """Mean difference of recorded log-probs from the learner's own, in nats; None when older versions sampled too."""
    skew_max: float | None = None
    ages: Mapping[str, float] = field(default_factory=dict)
    """What the trained tokens were like before the step, as `AGE.tokens`, `AGE.ratio`, `AGE.kl` and `AGE.ess`."""


class Trainer(Protocol):
    """Trains a policy. Every method blocks and is called from one thread at a time."""

    @property
    def version(self) -> int:
        """The policy's version now."""
        ...

    def train(self, groups: Sequence[Group]) -> TrainReport:
        """One update on these groups."""
        ...

    def publish(self) -> WeightRef:
        """Where the engine finds the weights of now. Blocks while they are written for engines that copy them."""
        ...

    def save(self, folder: Path, *, beside: Mapping[str, str]) -> None:
        """Write a checkpoint, with these files of the caller's; the folder is there whole or not at all."""
        ...


class LearnerTrainer:
    """Rule, aggregation and loss around a learner."""

    def __init__(
        self, learner: Learner, *, rule: CreditRule, aggregation: Aggregation, loss: Loss | Objective,
        shared: Shared = PATH_SUM, prm: ProcessReward | None = None,
    ) -> None:
        from treadle.algorithms.objective import Objective

        self.learner = learner
        self.objective = loss if isinstance(loss, Objective) else Objective(loss=loss)
        """The loss with its correction and KL penalty."""
        self.prm = prm
        """Pays every action before credit is assigned; None pays what the world pays."""
        self.shared = shared
        self.rule = rule
        self.aggregation = aggregation
        self.loss = loss

    @property
    def version(self) -> int:
        """The policy's version now."""
        return self.learner.policy.version

    def train(self, groups: Sequence[Group]) -> TrainReport:
        """Notes, credit over the whole batch, packs, one update.

        Raises ConfigError for a note that nobody can compute, or a forest that the rule cannot judge.
        """
        from treadle.learner.pack import pack
        from treadle.learner.value import at_level

        forest = self.learner.annotate(Forest.of(groups), self.rule.needs | self.objective.columns)
        if self.prm is not None:
            forest = self.prm.rewarded(forest)
        try:
            collapsed, denominator = self.objective.collapse(
                self.objective.rewarded(forest), self.rule, self.aggregation, shared=self.shared
            )
        except ValueError as error:  # the recipe's rule and its world do not fit
            raise ConfigError(one_line(error)) from error
        value = self.learner.config.value
        if value is not None and collapsed.returns is not None:
            collapsed = replace(collapsed, returns=at_level(collapsed.returns, forest, value.level))
        packs = pack(
            forest, collapsed, denominator=denominator, budget_tokens=self.learner.pack_tokens,
            tolerance=self.learner.config.weave_tolerance, shares=self.learner.costs,
        )
        fresh = all(group.oldest_version in (None, self.version) for group in groups)
        report = self.learner.update(packs, self.objective, fresh=fresh)
        return TrainReport(
            version=report.version, loss=report.loss, grad_norm=report.grad_norm, lr=report.lr,
            tokens_trained=report.tokens_trained, seconds=report.seconds, skipped=bool(report.skipped),
            stats=dict(report.stats), skew_mean=None if report.skew is None else report.skew.mean,
            skew_max=None if report.skew is None else report.skew.most,
            ages={f"{age}.{key}": value for age, held in report.ages.items() for key, value in asdict(held).items()},
        )

    def publish(self) -> WeightRef:
        """Where the engine finds the weights of now."""
        return self.learner.publish()

    def save(self, folder: Path, *, beside: Mapping[str, str]) -> None:
        """Weights, optimiser and counters."""
        self.learner.save(folder, beside=beside)


class BlockingThread:
    """One thread for what blocks. A context manager; leaving it waits for nothing but the call under way."""

    def __init__(self, name: str = "treadle-update") -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, what: str, function: Callable[[], T], *, deadline_s: float) -> T:
        """Run `function` there. Raises DeadlineExceeded naming `what`; the thread then goes on alone."""
        async with deadline(what, deadline_s):
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        raise AssertionError("a deadline does not swallow its body")

    def close(self) -> None:
        """Take no more calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> BlockingThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
