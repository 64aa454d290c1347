"""The pipeline's numbers, checked against each other once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from treadle.core.errors import ConfigError
from treadle.pipeline.counting import InOrder
from treadle.pipeline.curriculum import CurriculumPlan, InTicketOrder
from treadle.pipeline.filters import DropEqualRewards, FilterPlan
from treadle.pipeline.horizon import Horizon
from treadle.pipeline.schedule import Bounds, OnStale, SchedulePlan
from treadle.pipeline.watchdog import WatchdogConfig

Finish = Literal["last", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Raises ConfigError naming the keys that contradict each other."""

    group_size: int = 8
    """Rollouts of one task that share a baseline."""
    groups_per_update: int = 8
    """Tickets of one update; dropped ones shrink it, unless `schedule=dynamic` replaces them."""
    updates: int = 30
    """Batches of tickets to take; one whose groups were all dropped makes no new version."""
    tokens: int | None = None
    """Sampled tokens of taken batches, everything that was played for them included, at which the run ends: with the
    update that comes nearest, by the mean of those so far. `updates` is then the most. None does not count."""
    lag: int = 0
    """Updates that generation may run ahead. 0: every token is sampled by the version that it trains."""
    max_staleness: int | None = None
    """Hard bound on the versions between a trained token (its KV included) and its update; None means `lag`."""
    on_stale: OnStale = "wait"
    """What becomes of a ticket that cannot be trained within the bound: `wait` lets the update wait for it before that
    happens; `drop` gives it up and `mask` trains without its old tokens, and both favour short rollouts."""
    schedule: SchedulePlan = field(default_factory=InOrder)
    """What makes the next batch: so many tickets, by `tickets`, `strict`, `freshest`, `shortest` or `learnability`;
    `dynamic`, which takes tickets until so many groups train; or `redundant`, which plays more and gives up the slow
    ones."""
    curriculum: CurriculumPlan = field(default_factory=InTicketOrder)
    """Which task a ticket plays: `tickets` (task number = ticket) or `pools` (kinds that are solved sometimes)."""
    filters: tuple[FilterPlan, ...] = (DropEqualRewards(),)
    """What of a group does not train: `zero_variance` (groups with nothing to compare), `overlong`, `void_turn`,
    `duplicate` and `unprobed` (rollouts). All but the first change what is learned; `pipeline.masks` says how."""
    horizon: Horizon | None = None
    """How the number of turns grows at the beginning; None allows `limits.max_turns` from the start."""
    infra_retries: int = 2
    """How often a rollout is played again after failures of the machinery."""
    env_retries: int = 1
    """How often a rollout is played again after failures of the environment's code."""
    min_valid: float = 0.75
    """Smallest share of a group's rollouts that must be valid for the group to train."""
    evaluate_every: int = 0
    """Updates between evaluations beside training, each of one version: no update begins while one runs. 0 evaluates
    only before and after. Where they are made, the checkpoint that did best on them stays, the earliest of equals."""
    finish: Finish = "last"
    """What a run ends with: the `last` version, or the `best` one that `validation` measured, whose weights are taken
    back when the updates are over. Training that does harm then costs its time and nothing else."""
    save_every: int = 0
    """Updates between checkpoints; 0 saves only at the end."""
    keep_checkpoints: int = 1
    """How many checkpoints stay, the best one not counted; older ones are removed after a newer one is complete."""
    stall_s: float = 1800.0
    """Seconds in which nothing at all may happen before a wait ends the run with its name."""
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    """What is tried before that, and after how long."""
    update_s: float = 3600.0
    """Deadline of one optimiser update or one save."""
    spare_rollouts: int = 0
    """Rollouts of a group beyond `group_size`: once so many are valid, those that still run are cancelled. It cuts the
    slow tail and favours short rollouts, so that it biases what is learned."""
    breaker_failures: int = 0
    """Failed rollouts in a row after which a task family gets no new tickets for a while; 0 never does that."""
    breaker_tickets: int = 32
    """Tickets that close before one of such a family is tried again."""
    failed_batches: int = 3
    """Batches in a row that were lost to failed rollouts, after which the run stops with the last failure."""
    skipped_updates: int = 3
    """Updates in a row whose gradient was not finite, after which the run stops; every one of them changes nothing."""

    def __post_init__(self) -> None:
        least = {
            "group_size": 1, "groups_per_update": 1, "updates": 0, "lag": 0, "infra_retries": 0, "env_retries": 0,
            "evaluate_every": 0, "save_every": 0, "keep_checkpoints": 1, "failed_batches": 1,
            "spare_rollouts": 0, "breaker_failures": 0, "breaker_tickets": 0, "skipped_updates": 1,
        }
        for key, low in least.items():
            if getattr(self, key) < low:
                raise ConfigError(f"pipeline.{key}: got {getattr(self, key)}, expected >= {low}")
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"pipeline.tokens: got {self.tokens}, expected >= 1 or none")
        names = [plan.name for plan in self.filters]
        if len(set(names)) != len(names):
            raise ConfigError(f"pipeline.filters: got {', '.join(names)}, expected each name once")
        if not 0 < self.min_valid <= 1:
            raise ConfigError(f"pipeline.min_valid: got {self.min_valid}, expected a share in (0, 1]")
        for key in ("stall_s", "update_s"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"pipeline.{key}: got {getattr(self, key)}, expected > 0 seconds")
        if self.max_staleness is not None and self.max_staleness < self.lag:
            raise ConfigError(
                f"pipeline.max_staleness={self.max_staleness} contradicts pipeline.lag={self.lag}: "
                "expected max_staleness >= lag, because lag updates pass before a group trains"
            )

    @property
    def staleness_bound(self) -> int:
        """`max_staleness`, or `lag` when it is None."""
        return self.lag if self.max_staleness is None else self.max_staleness

    @property
    def follow_s(self) -> float:
        """`stall_s` of waits that the update pump's wait explains: it speaks first."""
        return 2 * self.stall_s

    @property
    def bounds(self) -> Bounds:
        """What the schedule has to keep to."""
        return Bounds(
            groups_per_update=self.groups_per_update, lag=self.lag, max_staleness=self.staleness_bound,
            on_stale=self.on_stale, updates=self.updates,
        )

    @property
    def permits(self) -> int:
        """Most groups outstanding."""
        return (self.lag + self.schedule.most) * self.groups_per_update

    @property
    def tickets(self) -> int:
        """Most tickets of the whole run."""
        return self.updates * self.schedule.most * self.groups_per_update
