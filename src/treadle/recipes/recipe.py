"""The recipe: the typed config of a whole run.

Every section stands beside the class that it configures; a recipe only nests them. A recipe is made by a function in a
Python file, changed by `--set learner.lr=3e-5` or a TOML file (`changed`), and printed by `flat`. What contradicts
itself across sections is refused here, once, naming the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.agents.branch_none import Independent
from treadle.agents.branching import Branching
from treadle.agents.branchings import BRANCHING
from treadle.agents.demonstrator import DemonstrationPlan
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.algorithms.aggregation import AGGREGATIONS, Aggregation, SeqSumConst, TokenMean
from treadle.algorithms.conditions import unmet, unshared
from treadle.algorithms.corrections import CORRECTIONS, Correction
from treadle.algorithms.credit import CreditRule
from treadle.algorithms.group_baseline import Grpo
from treadle.algorithms.kl import Kl
from treadle.algorithms.losses import LOSSES, Loss, PpoClip
from treadle.algorithms.objective import COLUMNS, Objective
from treadle.algorithms.rules import RULES
from treadle.algorithms.shared import SHARED, NodeWeight, PathSum, Shared
from treadle.core.config import Names, apply, flatten, to_toml, unset
from treadle.core.errors import ConfigError
from treadle.envs.cassette import CassetteConfig
from treadle.envs.host import HostConfig
from treadle.envs.snapshots import SnapshotsConfig
from treadle.inference.config import EngineConfig
from treadle.learner.config import LearnerConfig, PrmConfig
from treadle.pipeline.coldstart import ColdStartConfig
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import CURRICULA, CurriculumPlan
from treadle.pipeline.evaluation import EvaluationConfig, ValidationConfig
from treadle.pipeline.filters import FilterPlan
from treadle.pipeline.masks import FILTERS
from treadle.pipeline.orders import SCHEDULES
from treadle.pipeline.redundant import Redundant
from treadle.pipeline.schedule import SchedulePlan
from treadle.recipes.memory import MemoryConfig
from treadle.recipes.world import WorldPort

DTYPES = ("float32", "bfloat16", "float64")
"""Number formats that a run may hold its weights in."""
COMPUTE_DTYPES = (None, "bfloat16")
"""Number formats that a run may multiply in; None is that of the weights."""
HALF_SKEW = 0.1
"""Least bound of the skew, in nats, in half precision: a 135M model came to 0.04."""
MIXED_SKEW = 0.05
"""The same for products alone in half precision: it came to 0.017."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Which credit, which loss, which average, and what rollouts make of a start that they share.

    Raises ConfigError for what contradicts itself.
    """

    rule: CreditRule = field(default_factory=Grpo)
    loss: Loss = field(default_factory=PpoClip)
    aggregation: Aggregation = field(default_factory=TokenMean)
    shared: Shared = field(default_factory=PathSum)
    """What a sampled segment gets that several rollouts run through: path_sum, mean, first or node."""
    correction: Correction | None = None
    """What tokens of older policies count: `tis`, `icepop`, `decoupled`, `sequence_mask`; None is one clipped ratio."""
    prox: str = "behaviour"
    """What the clipped ratio is taken from: `behaviour` (recorded log-probs), or `learner` (the weights that the update
    begins with, one more forward)."""
    kl: Kl | None = None
    """A penalty for leaving the weights that reinforcement learning began with. Without adapters these are held a
    second time, and written to the run's folder once."""
    prm: PrmConfig | None = None
    """A process reward model that pays every action, beside what the world pays."""

    def __post_init__(self) -> None:
        for key, value in (("rule", self.rule), ("loss", self.loss), ("aggregation", self.aggregation)):
            if isinstance(value, type):
                raise ConfigError(
                    f"algorithm.{key}: got the class {value.__name__}, expected an object of it; set "
                    f"{key}={value.__name__}()"
                )
        if isinstance(self.shared, NodeWeight) and not isinstance(self.aggregation, SeqSumConst):
            raise ConfigError(
                f"algorithm.shared=node contradicts algorithm.aggregation={self.aggregation.name}: rollouts weigh what "
                "a random walk gives them, which a denominator that counts rollouts or tokens turns around; set "
                "algorithm.aggregation=seq_sum_const and its constant"
            )
        if (contradiction := unshared(self.rule, self.shared)) is not None:
            raise ConfigError(contradiction)
        if self.prm is not None and not self.prm.folder:
            raise ConfigError("algorithm.prm.folder: got nothing, expected a folder that `treadle prm RUN` wrote")
        if unknown := sorted(self.rule.needs - COLUMNS):
            raise ConfigError(
                f"algorithm.rule={self.rule.name} needs the column {unknown[0]!r}, which nobody computes (there are "
                f"{', '.join(sorted(COLUMNS))})"
            )
        _ = self.objective  # raises for parts that contradict

    @property
    def objective(self) -> Objective:
        """The loss with what stands around it."""
        return Objective(loss=self.loss, correction=self.correction, kl=self.kl, prox=self.prox)

    @property
    def columns(self) -> frozenset[str]:
        """Notes that the learner computes before credit."""
        return self.rule.needs | self.objective.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartPlan:
    """Imitation before reinforcement learning: which demonstrations, how often, how fast."""

    demonstrations: DemonstrationPlan = field(default_factory=DemonstrationPlan)
    training: ColdStartConfig = field(default_factory=ColdStartConfig)
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(lr=5e-5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole run. Raises ConfigError for sections that contradict each other."""

    name: str
    """Names the run folder."""
    world: WorldPort
    seed: int = 0
    """Root of all random streams."""
    model: str = "smollm2-135m"
    """Embedded model, GGUF file, folder or hub id."""
    dtype: str = "float32"
    """Number format of the weights, of engine and learner alike: float32, bfloat16 or float64. docs/memory.md says what
    half precision costs."""
    compute_dtype: str | None = None
    """Number format of the products of linear layers, of engine and learner alike: none takes that of the weights,
    bfloat16 rounds copies of float32 weights (mixed precision). docs/memory.md says what it brings and costs."""
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    rewards: Rewards = field(default_factory=Rewards)
    branching: Branching = field(default_factory=Independent)
    """Where the rollouts of a training group fork, and what a group may cost: `none`, `fixed`, `entropy`, `expand`,
    `expand_finished` or `probe`. A group begins with `pipeline.group_size` rollouts; see docs/branching.md."""
    host: HostConfig = field(default_factory=HostConfig)
    cassette: CassetteConfig = field(default_factory=CassetteConfig)
    snapshots: SnapshotsConfig = field(default_factory=SnapshotsConfig)
    """How much the snapshots of live environments may take, from which rollouts are forked."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    coldstart: ColdStartPlan | None = None
    """None begins with reinforcement learning."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    evaluation: EvaluationConfig | None = field(default_factory=EvaluationConfig)
    """None never evaluates."""
    validation: ValidationConfig | None = None
    """Tasks that choose the best version: before the first update, after every `pipeline.evaluate_every`, and after the
    last. The held-out ones are then played only before and after. None chooses by those of `evaluation`."""
    deterministic: bool = False
    """Equal runs on one machine end with equal weights, to the last bit, undisturbed or killed and resumed. Turns
    `engine.deterministic` on; the environment must call itself deterministic, or answer from a cassette."""
    placebo: bool = False
    """Deal the rewards of each group out at random: the control arm of an experiment."""
    runs: Path = Path("runs")
    """Folder that run folders are made in."""
    threads: int | None = None
    """Threads of one tensor operation; None takes one per core."""

    def __post_init__(self) -> None:
        self._refuse_format()
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads: got {self.threads}, expected >= 1, or none for one per core")
        if self.deterministic:
            self._refuse_timing()
            object.__setattr__(self, "engine", replace(self.engine, deterministic=True))
        if self.engine.deterministic:
            self._refuse_adapters()
            self._refuse_mixed()
            self._forget()
        if self.limits.temperature == 0:
            raise ConfigError(
                f"limits.temperature=0 contradicts learner.temperature={self.learner.temperature}: greedy rollouts of "
                "a group are all the same and teach nothing; evaluation.temperature=0 evaluates greedily"
            )
        if self.learner.temperature != self.limits.temperature:
            raise ConfigError(
                f"learner.temperature={self.learner.temperature} contradicts "
                f"limits.temperature={self.limits.temperature}: the loss compares log-probs at the sampling temperature"
            )
        if self.limits.max_context > self.engine.context:
            raise ConfigError(
                f"limits.max_context={self.limits.max_context} contradicts engine.context={self.engine.context}: "
                "expected at most the engine's context"
            )
        silent_s, longest_s = self.pipeline.watchdog.rollout_s, self._longest_silence_s
        if silent_s is not None and silent_s <= longest_s:
            raise ConfigError(
                f"pipeline.watchdog.rollout_s={silent_s:g} contradicts limits.generate_s and host.*_s: a rollout that "
                f"keeps those may make no segment for {longest_s:g} s; set it to more, or to none"
            )
        if self.pipeline.horizon is not None:
            self.pipeline.horizon.require(self.limits)
        if self.pipeline.finish == "best" and (self.validation is None or not self.pipeline.evaluate_every):
            raise ConfigError(
                "pipeline.finish='best' needs pipeline.evaluate_every and validation: a version that held-out tasks "
                "chose looks better on them than it is; set both, or pipeline.finish='last'"
            )
        if self.pipeline.evaluate_every and self.evaluation is None and self.validation is None:
            raise ConfigError(
                f"pipeline.evaluate_every={self.pipeline.evaluate_every} contradicts evaluation=None: nothing says "
                "what to evaluate; set evaluation.tasks, or pipeline.evaluate_every=0"
            )
        self._refuse_branching()
        self.algorithm.objective.require_bounded(self.pipeline.staleness_bound)
        if "value" in self.algorithm.columns and self.learner.value is None:
            raise ConfigError(
                f"algorithm.rule={self.algorithm.rule.name} needs values and learner.value is none: set "
                "learner.value.level=token or turn"
            )
        size, rule = self.pipeline.group_size, self.algorithm.rule
        if self.branching.rollouts(size) < rule.min_rollouts:
            raise ConfigError(
                f"pipeline.group_size={size} contradicts algorithm.rule={rule.name}: it compares siblings and needs at "
                f"least {rule.min_rollouts} rollouts a group"
            )
        contradiction = unmet(
            rule, aggregation=self.algorithm.aggregation, branching=self.branching.name,
            declared=self.branching.fanout_before_children,
        )
        if contradiction is not None:
            raise ConfigError(contradiction)

    @property
    def _longest_silence_s(self) -> float:
        """The longest that a rollout may take from one segment to the next, tools with limits of their own aside."""
        host = self.host
        first = 2 * host.setup_s + self.limits.generate_s  # making the environment, its reset, the first action
        last = host.step_s + (1 + host.score_retries) * host.score_s
        if not self._branches:
            return max(first, last)
        return max(first, last, host.step_s + self.limits.generate_s + host.setup_s)  # an answer, a look, a snapshot

    @property
    def _branches(self) -> bool:
        return self.branching.begin(size=self.pipeline.group_size, limits=self.limits) is not None

    def _refuse_branching(self) -> None:
        """Raise ConfigError for what does not fit a group that grows as a tree."""
        size, spare = self.pipeline.group_size, self.pipeline.spare_rollouts
        self.branching.require(size=size, limits=self.limits, deterministic=self.deterministic)
        if spare and self._branches:
            raise ConfigError(
                f"pipeline.spare_rollouts={spare} contradicts branching={self.branching.name}: who is cancelled as the "
                "slowest would decide which branches a tree has; set pipeline.spare_rollouts=0"
            )

    def _forget(self) -> None:
        """No memo: what an engine computed differs from what the learner would in the last bits."""
        object.__setattr__(self, "learner", replace(self.learner, memo_tokens=0))
        if self.coldstart is not None:
            learner = replace(self.coldstart.learner, memo_tokens=0)
            object.__setattr__(self, "coldstart", replace(self.coldstart, learner=learner))

    def _refuse_format(self) -> None:
        """Raise ConfigError for an unknown number format, or one that rounds more than the bound of the skew allows."""
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype: got {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise ConfigError(f"compute_dtype: got {self.compute_dtype!r}, expected none or bfloat16")
        if self.compute_dtype is not None and self.dtype != "float32":
            raise ConfigError(
                f"compute_dtype={self.compute_dtype} contradicts dtype={self.dtype}: products in half precision are "
                "made of float32 weights; set dtype=float32, or compute_dtype=none"
            )
        bound = self.learner.max_skew
        for key, value, least, by in (
            ("dtype", self.dtype, HALF_SKEW, "0.04"), ("compute_dtype", self.compute_dtype, MIXED_SKEW, "0.017"),
        ):
            if value == "bfloat16" and bound is not None and bound < least:
                raise ConfigError(
                    f"{key}=bfloat16 contradicts learner.max_skew={bound:g}: in half precision engine and learner "
                    f"round differently, a 135M model's log-probs by {by} nats; set learner.max_skew to {least:g} or "
                    "more, or to none"
                )

    def _refuse_mixed(self) -> None:
        """Raise ConfigError for rounded products: that they treat all rows alike is not proven."""
        if self.compute_dtype is not None:
            raise ConfigError(
                f"compute_dtype={self.compute_dtype} contradicts engine.deterministic=true: the engine's proof that "
                "rows keep their bits does not cover it; set compute_dtype=none"
            )

    def _refuse_adapters(self) -> None:
        """Raise ConfigError for adapters: that their products treat all rows alike is not proven."""
        cold = None if self.coldstart is None else self.coldstart.learner
        for key, learner in (("learner", self.learner), ("coldstart.learner", cold)):
            if learner is not None and learner.lora_rank is not None:
                raise ConfigError(
                    f"{key}.lora_rank={learner.lora_rank} contradicts engine.deterministic=true: the engine's proof "
                    f"that rows keep their bits does not cover adapters; set {key}.lora_rank=none"
                )

    def _refuse_timing(self) -> None:
        """Raise ConfigError for what depends on who is faster."""
        schedule = self.pipeline.schedule
        for key, value, off, what in (
            ("lag", self.pipeline.lag, 0, "which version samples a token"),
            ("spare_rollouts", self.pipeline.spare_rollouts, 0, "which rollouts are cancelled"),
            ("schedule", schedule.name if isinstance(schedule, Redundant) else "", "tickets", "which groups train"),
        ):
            if value:
                raise ConfigError(
                    f"pipeline.{key}={value} contradicts deterministic=true: {what} would depend on timing; set "
                    f"pipeline.{key}={off}, or only engine.deterministic=true, which lets the run be replayed from its "
                    "record"
                )
        if self.memory.budget_gb is not None:
            raise ConfigError(
                f"memory.budget_gb={self.memory.budget_gb:g} contradicts deterministic=true: how an update is cut into "
                "packs would depend on the memory that is left; set memory.budget_gb=none"
            )
        if self.engine.copies:
            raise ConfigError(
                "engine.copies=true contradicts deterministic=true: a copying engine has no deterministic mode; set "
                "one of them to false"
            )

    def changed(self, overrides: Mapping[str, object]) -> Recipe:
        """This recipe with dotted keys set. Raises ConfigError naming key, got and expected."""
        return apply(self, overrides, names=NAMES)

    def flat(self) -> dict[str, object]:
        """Dotted key to plain value."""
        return flatten(self, names=NAMES)

    def unset(self, key: str) -> dict[str, object]:
        """What `flat` says of this key and of those below it when nobody sets them. Raises ConfigError without one."""
        return unset(self, key, names=NAMES)

    def toml(self) -> str:
        """`flat` as a TOML file that `changed` takes back."""
        return to_toml(self, names=NAMES)


def _table(kinds: Mapping[str, type[Any]]) -> dict[str, Callable[[], object]]:
    return {name: kind for name, kind in kinds.items() if kind is not SeqSumConst} | (
        {SeqSumConst.name: _sum_const} if SeqSumConst.name in kinds else {}
    )


def _sum_const() -> SeqSumConst:
    """The constant has no default that fits every run; this one is set below the name."""
    return SeqSumConst(constant=1.0)


NAMES: Names = {
    CreditRule: _table(RULES), Loss: _table(LOSSES), Aggregation: _table(AGGREGATIONS), Shared: _table(SHARED),
    Branching: _table(BRANCHING), Correction: _table(CORRECTIONS),
    CurriculumPlan: _table(CURRICULA), SchedulePlan: _table(SCHEDULES), FilterPlan: _table(FILTERS),
}
"""What `branching`, the fields of `Algorithm`, and those of `pipeline` that are chosen by name may be set to."""
