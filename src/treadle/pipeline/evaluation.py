"""Held-out evaluation: raw counts, intervals, one pinned version.

N tasks of the held-out split, one rollout each, the same tasks and the same streams at every evaluation, so that
two evaluations differ by the policy alone. Nobody updates the policy while one runs; that every token was sampled by
the version it began with, on KV of that version, is checked and not assumed. Rollouts that failed for reasons that are
not the policy's are retried and, if that does not help, counted apart: they are neither solved nor unsolved. The
watchdog ends those that stay silent, as it ends training's, and they count as failed. An evaluation that was
interrupted keeps the rollouts that it finished.

Beside training, one waits in the engine's queue behind every training rollout: those go on while it runs, as far as
their permits reach, and it uses the slots that they leave. A request that has a slot keeps it, unless memory runs
short: then evaluation's go first.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import STEP
from treadle.agents.player import Priority
from treadle.core.errors import ConfigError, EngineError
from treadle.core.events import Value
from treadle.envs.task import Task, Taskset, size_of, task_of
from treadle.pipeline.failures import nothing_scored
from treadle.pipeline.first_error import first_error
from treadle.pipeline.ledger import Ledger, sampled_tokens
from treadle.pipeline.watchdog import Silence
from treadle.trajectory.group import Group, GroupKey, Sink

LOW_PRIORITY = 1 << 40
"""Behind every training ticket in the engine's queue: more than any run has."""
PINNED = "no weights may change while an evaluation runs"


def wilson(solved: int, total: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of a share; (0, 1) when nothing was counted. Source: Wilson 1927."""
    if total == 0:
        return 0.0, 1.0
    share, zz = solved / total, z * z
    middle = (share + zz / (2 * total)) / (1 + zz / total)
    half = z / (1 + zz / total) * math.sqrt(share * (1 - share) / total + zz / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Count:
    """Solved out of total."""

    solved: int = 0
    total: int = 0

    def plus(self, solved: bool) -> Count:
        """One more."""
        return Count(self.solved + solved, self.total + 1)

    @property
    def share(self) -> float:
        """0..1; 0 when nothing was counted."""
        return self.solved / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval."""
        return wilson(self.solved, self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Raises ConfigError naming the key."""

    SECTION: ClassVar[str] = "evaluation"
    """Of the recipe, for errors."""

    tasks: int = 100
    """Held-out tasks; a finite split that holds fewer gives all it has."""
    untouched_tasks: int | None = None
    """Tasks of the evaluation of the untouched model; None means `tasks`."""
    split: str = "heldout"
    first: int = 0
    """Number of the first task in the split: what chooses a version should be played by nothing else."""
    temperature: float = 0.0
    """0 decodes greedily."""
    at_once: int = 64
    """Rollouts that are played at the same time."""

    def __post_init__(self) -> None:
        for key in ("tasks", "at_once"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{self.SECTION}.{key}: got {getattr(self, key)}, expected >= 1")
        if self.first < 0:
            raise ConfigError(f"{self.SECTION}.first: got {self.first}, expected >= 0")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"{self.SECTION}.temperature: got {self.temperature}, expected >= 0, where 0 is greedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationConfig(EvaluationConfig):
    """Tasks by which a version is chosen: of the training split, far behind those that training plays."""

    SECTION: ClassVar[str] = "validation"

    split: str = "train"
    first: int = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one evaluation found."""

    label: str
    version: int
    overall: Count
    unscored: int
    reward_mean: float | None
    tokens: int
    seconds: float
    temperature: float
    levels: Mapping[str, Count] = field(default_factory=dict)
    families: Mapping[str, Count] = field(default_factory=dict)

    def values(self, update: int) -> dict[str, Value]:
        """The keys of `evaluation.done`."""
        low, high = self.overall.interval
        out: dict[str, Value] = {
            "label": self.label, "version": self.version, "update": update, "solved": self.overall.solved,
            "total": self.overall.total, "unscored": self.unscored, "solved_share": self.overall.share,
            "low_share": low, "high_share": high, "reward_mean": self.reward_mean, "tokens": self.tokens,
            "seconds_s": self.seconds, "temperature": self.temperature,
        }
        for kind, counts in (("level", self.levels), ("family", self.families)):
            for name, count in counts.items():
                out[f"{kind}.{name}.solved"], out[f"{kind}.{name}.total"] = count.solved, count.total
        return out

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Evaluation:
        """The evaluation that `values` tells of."""
        def counts(kind: str) -> dict[str, Count]:
            names = [key[len(kind) + 1 : -len(".total")] for key in values if key.startswith(f"{kind}.")
                     and key.endswith(".total")]
            return {name: Count(values[f"{kind}.{name}.solved"], values[f"{kind}.{name}.total"]) for name in names}

        return cls(
            label=values["label"], version=values["version"], overall=Count(values["solved"], values["total"]),
            unscored=values["unscored"], reward_mean=values["reward_mean"], tokens=values["tokens"],
            seconds=values["seconds_s"], temperature=values["temperature"], levels=counts("level"),
            families=counts("family"),
        )


def _check_version(group: Group, version: int, *, label: str) -> None:
    """Raise EngineError unless every sampled token, and the KV that it was computed on, has this version."""
    sampled = [segment for segment in group.segments.values() if segment.versions]
    seen = {v for segment in sampled for v, _ in segment.versions}
    seen |= {segment.kv_version for segment in sampled if segment.kv_version is not None}
    if seen - {version}:
        raise EngineError(
            f"evaluation {label}: group {group.key.id} depends on policy versions {sorted(seen)}, expected {version} "
            f"alone: {PINNED}"
        )


def _behind(number: int) -> Priority:
    """The place of this task behind all training."""
    return lambda: LOW_PRIORITY + number


class Evaluator:
    """Evaluates the policy of now. `player` plays groups of one with the evaluation's own limits and seed."""

    def __init__(
        self, taskset: Taskset, player: GroupPlayer, *, config: EvaluationConfig, version: Callable[[], int],
        ledger: Ledger, sink: Sink | None = None, silent_s: float | None = None,
    ) -> None:
        assert player.size == 1, f"evaluation plays rollouts of one, got a group size of {player.size}"
        self.taskset = taskset
        self.player = player
        self.config = config
        self.version = version
        """Asks for the policy's version."""
        self.ledger = ledger
        self.sink = sink
        self.silence = Silence(silent_s, player=player, ledger=ledger)
        """Gives up who makes no segment for so many seconds; None is patient."""

    async def run(self, label: str, *, update: int = 0, tasks: int | None = None) -> Evaluation:
        """Play the tasks and count.

        Raises EngineError when the version moved meanwhile, EnvError or InfraError when nothing could be scored,
        ConfigError when no score has the part that `rewards.main` names.
        """
        clock = self.player.clock
        began, version = clock.now(), self.version()
        first, count = self.config.first, self._count(tasks or self.config.tasks)
        self.ledger.tell("stage.started", {"stage": "evaluation", "label": label, "total": count})
        tally = _Tally(label=label, expected=count)
        with first_error():
            await self.silence.over(lambda: self._play(range(first, first + count), tally, version))
        if self.version() != version:
            raise EngineError(
                f"evaluation {label}: the policy went from version {version} to {self.version()}: {PINNED}"
            )
        if not tally.overall.total:
            raise nothing_scored(f"evaluation {label}: none of {count} rollouts could be scored", tally.failed)
        tally.require_part(self.ledger.rewards.main)
        result = tally.result(
            version=version, seconds=clock.now() - began, temperature=self.player.player.limits.temperature
        )
        self.ledger.tell("evaluation.done", result.values(update))
        self.ledger.tell("stage.done", {"stage": "evaluation", "label": label, "seconds_s": result.seconds})
        return result

    def _count(self, asked: int) -> int:
        """How many tasks there are to play; a run is refused whose split ends before the first of them."""
        size = size_of(self.taskset, self.config.split)
        return asked if size is None else max(min(asked, size - self.config.first), 0)

    async def _play(self, numbers: range, tally: _Tally, version: int) -> None:
        """These tasks, several at once."""
        shared = iter(numbers)
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self.config.at_once, len(numbers))):
                workers.create_task(self._work(shared, tally, version))

    async def _work(self, numbers: Iterator[int], tally: _Tally, version: int) -> None:
        for number in numbers:  # shared by all workers: each takes the next
            task = task_of(self.taskset, self.config.split, number)
            key = GroupKey(
                id=f"{tally.label}-{number:05d}", ticket=number, task=task.id, family=task.family, split=task.split,
                admitted_version=version,
            )
            group = self.ledger.past.group(key, self.sink)
            self.ledger.opened(group, task)
            try:
                await self.player.play(group, task, priority=_behind(number))
            except BaseException:  # given up, whatever the reason; it is raised again
                self.ledger.forget(group)
                raise
            self.ledger.closed(group)
            _check_version(group, version, label=tally.label)
            tally.add(group, task, self.ledger)
            self.ledger.tell("evaluation.progress", {
                "label": tally.label, "done": tally.done, "total": tally.expected, "solved": tally.overall.solved,
            })


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Counts while an evaluation runs."""

    label: str
    expected: int
    done: int = 0
    failed: list[Group] = field(default_factory=list)
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    """Names of everything that was paid."""
    overall: Count = field(default_factory=Count)
    levels: defaultdict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    families: defaultdict[str, Count] = field(default_factory=lambda: defaultdict(Count))

    def add(self, group: Group, task: Task, ledger: Ledger) -> None:
        """Count one played task."""
        self.done += 1
        self.tokens += sampled_tokens(group)
        if not group.valid:
            self.failed.append(group)
            return
        rollout = group.valid[-1]
        raw, solved = ledger.rewards.raw(rollout), ledger.rewards.solved(rollout)
        self.rewards += [] if raw is None else [raw]
        self.parts |= rollout.rewards.keys()
        self.overall = self.overall.plus(solved)
        if task.level:
            self.levels[task.level] = self.levels[task.level].plus(solved)
        if task.family:
            self.families[task.family] = self.families[task.family].plus(solved)

    def require_part(self, main: str) -> None:
        """Raise ConfigError when scores have parts, but none the part that says whether a task is solved."""
        scored = sorted(self.parts - {STEP})
        if main not in ("", STEP) and scored and main not in scored:
            raise ConfigError(
                f"rewards.main: got {main!r}, expected a part that the environment's score has; in evaluation "
                f"{self.label} it had {', '.join(scored)}"
            )

    def result(self, *, version: int, seconds: float, temperature: float) -> Evaluation:
        """The finished record."""
        return Evaluation(
            label=self.label, version=version, overall=self.overall, unscored=len(self.failed), tokens=self.tokens,
            reward_mean=sum(self.rewards) / len(self.rewards) if self.rewards else None, seconds=seconds,
            temperature=temperature, levels=dict(sorted(self.levels.items())),
            families=dict(sorted(self.families.items())),
        )
