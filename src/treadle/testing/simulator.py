"""The simulator: the real pipeline over a fleet, agents and a learner that only take time.

    Scenario -> simulate -> Simulated       in virtual time; seconds of real time for thousands of engines

Loop, pumps, board, permits, schedule, ledger and group player are those of a real run. What is simulated is a model of
lengths and latencies (`workload`), of engines and their breakdowns (`fleet`), and of a learner that needs so many
seconds for a batch. So what a schedule, a lag or a fleet size would do to a run can be measured before it is paid for.

A figure is taken over the updates in the middle: while the pipeline fills, and while it runs dry at the end, no
schedule can be told from another. The ideal is the capacity of the slowest stage: the fleet with every slot busy, or
the learner without a pause, whichever gives fewer rollouts a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from treadle.agents.group_player import GroupPlayer, RetryBudget
from treadle.agents.limits import Rewards
from treadle.agents.stages import StageMeter
from treadle.core.events import Event
from treadle.core.ports import WeightRef
from treadle.core.seeds import Stream
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.filters import EnoughValid
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts
from treadle.pipeline.trainer import BlockingThread, TrainReport
from treadle.pipeline.watchdog import WatchdogConfig
from treadle.testing.fleet import Fleet, FleetConfig
from treadle.testing.virtual_clock import VirtualClock
from treadle.testing.workload import SimulatedPlayer, SimulatedTasks, Workload
from treadle.trajectory.group import Group

T = TypeVar("T")
LONG_S = 1e9
"""Deadlines of the loop: a simulation does not stall."""
ASLEEP = WatchdogConfig(promote_s=None, rollout_s=None, shrink_s=None)
"""Nothing is done about what takes long: how long things take is what is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated."""

    pipeline: PipelineConfig
    fleet: FleetConfig = field(default_factory=FleetConfig)
    workload: Workload = field(default_factory=Workload)
    train_tokens_per_s: float = 16_000.0
    """Of the learner, sampled tokens alone."""
    update_s: float = 5.0
    """What every update takes besides: optimiser step and publishing."""
    seed: int = 0

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts of one batch."""
        return self.pipeline.groups_per_update * self.pipeline.group_size

    @property
    def capacities(self) -> dict[str, float]:
        """Rollouts per second that each stage could do without ever waiting."""
        mean = self.workload.mean_tokens
        batch_s = self.rollouts_per_update * mean / self.train_tokens_per_s + self.update_s
        return {"generate": self.fleet.tokens_per_s_all / mean, "update": self.rollouts_per_update / batch_s}

    @property
    def slowest(self) -> str:
        """The stage that bounds the run."""
        return min(self.capacities, key=lambda stage: self.capacities[stage])


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came out."""

    updates: int
    rollouts_per_s: float
    """Trained, in the middle of the run."""
    share_of_ideal: float
    """Of the slowest stage's capacity."""
    slowest: str
    generate_idle_share: float
    """Share of the fleet's slot seconds in which nothing was sampled."""
    update_idle_share: float
    """Share of the time in which the learner waited."""
    worst_staleness: int
    staleness_mean: float
    """Over trained groups."""
    wasted_share: float
    """Share of all sampled tokens that no update was made of, though their group was closed."""
    longest_wait: int
    """Most batches between a ticket's admission and its own batch."""
    ended_once: bool
    """Every admitted ticket was trained or dropped, exactly once."""
    trained: int
    dropped: int
    tokens_trained_mean: float
    """Of a trained rollout: smaller than the workload's mean where long ones are lost."""
    virtual_s: float
    real_s: float


def simulate(scenario: Scenario) -> Simulated:
    """Run it. Equal scenarios give equal results, except for `real_s`."""
    began = time.perf_counter()
    clock = VirtualClock()
    pipeline = replace(scenario.pipeline, stall_s=LONG_S, update_s=LONG_S, watchdog=ASLEEP)
    run = _Run(replace(scenario, pipeline=pipeline), clock)
    clock.run(run.play())
    run.thread.close()
    return run.result(real_s=time.perf_counter() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """How things stood when an update ended."""

    at: float
    busy_s: float
    """Slot seconds of the fleet so far."""
    update_s: float
    """Seconds of the learner so far."""
    trained: int
    """Rollouts so far."""


class _Learner:
    """Makes a version of every batch; says how long that takes."""

    def __init__(self, scenario: Scenario, player: SimulatedPlayer) -> None:
        self.scenario = scenario
        self.player = player
        self.version = 0
        self.staleness: list[int] = []
        """Of each trained group, by its own tokens."""
        self.rollouts = 0
        self.tokens = 0
        self.seconds = 0.0

    def train(self, groups: Sequence[Group]) -> TrainReport:
        """Count, and take time."""
        acted = {segment.rollout for group in groups for segment in group.segments.values() if segment.is_action}
        rollouts = [rollout for group in groups for rollout in group.valid if rollout.id in acted]
        tokens = sum(self.player.tokens[rollout.id] for rollout in rollouts)
        oldest = [group.oldest_version for group in groups]
        self.staleness += [self.version - version for version in oldest if version is not None]
        self.rollouts += len(rollouts)
        self.tokens += tokens
        seconds = tokens / self.scenario.train_tokens_per_s + self.scenario.update_s
        self.seconds += seconds
        self.version += 1
        return TrainReport(
            version=self.version, loss=0.0, grad_norm=0.0, lr=0.0, tokens_trained=tokens, seconds=seconds
        )

    def publish(self) -> WeightRef:
        """The weights of now."""
        return WeightRef(version=self.version)

    def save(self, folder: Path, *, beside: Mapping[str, str]) -> None:
        """Nothing to save."""


class _TimedThread(BlockingThread):
    """Calls at once, and lets the virtual seconds pass that the call says it took."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    async def call(self, what: str, function: Callable[[], T], *, deadline_s: float) -> T:
        """The function's result, after its time."""
        result = function()
        if isinstance(result, TrainReport):
            await self.clock.sleep(result.seconds)
        return result


class _Tally:
    """Listens: how often each ticket ended, and how long it waited."""

    def __init__(self) -> None:
        self.batches = 0
        self.admitted: dict[int, int] = {}
        """Ticket to the batches that had been taken."""
        self.ends: dict[str, list[int]] = {"group.trained": [], "group.dropped": []}
        self.longest_wait = 0
        self.at_batch: Callable[[], object] = lambda: None

    def emit(self, event: Event) -> None:
        """Take one event."""
        if event.name == "group.admitted":
            self.admitted[int(event.values["ticket"] or 0)] = self.batches
        elif event.name in self.ends:
            ticket = int(event.values["ticket"] or 0)
            self.ends[event.name].append(ticket)
            if event.name == "group.trained":
                self.longest_wait = max(self.longest_wait, self.batches - self.admitted[ticket])
        elif event.name in ("update.done", "update.skipped"):
            self.batches += 1
            self.at_batch()

    @property
    def ended_once(self) -> bool:
        """Trained or dropped, exactly once each."""
        return sorted([*self.ends["group.trained"], *self.ends["group.dropped"]]) == sorted(self.admitted)


class _Run:
    """One simulation."""

    def __init__(self, scenario: Scenario, clock: VirtualClock) -> None:
        self.scenario = scenario
        self.clock = clock
        config, seed = scenario.pipeline, Stream(scenario.seed)
        self.fleet = Fleet(scenario.fleet, clock=clock, seed=seed)
        self.player = SimulatedPlayer(scenario.workload, fleet=self.fleet, clock=clock)
        self.learner = _Learner(scenario, self.player)
        self.thread = _TimedThread(clock)
        self.tally = _Tally()
        self.tally.at_batch = self._mark
        self.marks: list[_Mark] = []
        rewards = Rewards(main="correct")
        ledger = Ledger(self.tally, meter=StageMeter(clock), rewards=rewards)
        retries = RetryBudget(infra=config.infra_retries, env=config.env_retries)
        self.loop = Loop(config, LoopParts(
            taskset=SimulatedTasks(scenario.workload.families),
            player=GroupPlayer(
                self.player, size=config.group_size, retries=retries, seed=seed, watcher=ledger,
                spare=config.spare_rollouts,
            ),
            trainer=self.learner, engine=self.fleet, ledger=ledger, thread=self.thread,
            filters=(EnoughValid(
                group_size=config.group_size, spare=config.spare_rollouts, min_valid=config.min_valid, min_rollouts=1,
            ),),
        ))

    async def play(self) -> None:
        """The whole run, with breakdowns beside it."""
        async with asyncio.TaskGroup() as tasks:
            wear = tasks.create_task(self.fleet.wear())
            await self.loop.run()
            wear.cancel()

    def result(self, *, real_s: float) -> Simulated:
        """What the marks, the learner and the fleet say."""
        edge = min(self.scenario.pipeline.lag + 1, (len(self.marks) - 1) // 3)
        first, last = self.marks[edge], self.marks[-1 - edge]
        seconds = last.at - first.at
        slots = self.scenario.fleet.engines * self.scenario.fleet.slots
        rate = (last.trained - first.trained) / seconds
        staleness = self.learner.staleness
        return Simulated(
            updates=self.tally.batches, rollouts_per_s=rate, slowest=self.scenario.slowest,
            share_of_ideal=rate / self.scenario.capacities[self.scenario.slowest],
            generate_idle_share=1 - (last.busy_s - first.busy_s) / (slots * seconds),
            update_idle_share=1 - (last.update_s - first.update_s) / seconds,
            worst_staleness=max(staleness, default=0), staleness_mean=sum(staleness) / max(1, len(staleness)),
            wasted_share=max(0.0, 1 - self.learner.tokens / max(1.0, self.fleet.tokens)),
            longest_wait=self.tally.longest_wait, ended_once=self.tally.ended_once,
            trained=len(self.tally.ends["group.trained"]), dropped=len(self.tally.ends["group.dropped"]),
            tokens_trained_mean=self.learner.tokens / max(1, self.learner.rollouts),
            virtual_s=self.clock.now(), real_s=real_s,
        )

    def _mark(self) -> None:
        self.marks.append(
            _Mark(at=self.clock.now(), busy_s=self.fleet.busy_s, update_s=self.learner.seconds,
                  trained=self.learner.rollouts)
        )
