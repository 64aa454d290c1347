"""A loop under faults: an injector with its journal, and the real pipeline around it.

    Injector    decides by named streams what goes wrong, and writes it down, outside of the run, before it does it
    Lab         the real loop, store, player and credit; world, engine and learner are what an injector needs

An environment does not know which rollout it plays in; an injector has to. `Marked` says it, in `WHO`, to whatever the
player calls, and the run knows nothing of it. `bench.fault_judge` holds the journal against what came of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.agents.group_player import GroupPlayer, Plays, RetryBudget
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Play, Player
from treadle.agents.ports import Rendering
from treadle.agents.stages import StageMeter
from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.group_baseline import Grpo
from treadle.core.clock import SystemClock
from treadle.core.events import Event, Fanout, Listener, Value
from treadle.core.ports import Clock, Generate, WeightRef
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.task import Taskset
from treadle.pipeline.checkpoints import Checkpoints
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, LoopReport, default_filters
from treadle.pipeline.trainer import BlockingThread, Trainer, TrainReport
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, Rollout
from treadle.trajectory.store import TrajectoryStore

WHO: ContextVar[str] = ContextVar("rollout")
"""Id of the rollout that is being played."""
RETRY_S = 0.01
"""Wait before an attempt after an infra failure."""


# -- the injector ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One injected fault, and how the rollout it was done to must end, as the outcome table says."""

    what: str
    rollout: str = ""
    """Empty when it was done to the run and not to a rollout."""
    status: str = "ok"
    origin: str = "-"

    @property
    def fails(self) -> bool:
        """Whether the rollout must be left out."""
        return self.status in ("error", "cancelled")


class Injector:
    """Decides what goes wrong. Its journal is a file that only grows."""

    def __init__(self, journal: Path, *, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.journal = journal
        self.faults: list[Fault] = []
        self._stream = Stream(seed).at("faults", kind)

    def draw(self, *name: str | int) -> float:
        """A number in [0, 1) of this name."""
        return self._stream.at(*name).uniform(0)

    def note(self, what: str, *, rollout: str = "", status: str = "ok", origin: str = "-") -> None:
        """Write a fault down. Called just before it happens."""
        fault = Fault(what=what, rollout=rollout, status=status, origin=origin)
        self.faults.append(fault)
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": self.kind, **asdict(fault)}) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a kind of fault is given to work with."""

    folder: Path
    injector: Injector
    size: float = 1.0
    """Share of the usual length: tests run less."""

    def updates(self, usual: int) -> int:
        """How many updates to run."""
        return max(2, round(self.size * usual))


# -- the run ---------------------------------------------------------------------------------------------------


class Marked:
    """A player whose environments can be asked, by an injector, which rollout they are in. Satisfies `Plays`."""

    def __init__(self, inner: Plays) -> None:
        self.inner = inner

    @property
    def generate(self) -> Generate:
        return self.inner.generate

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    @property
    def limits(self) -> RolloutLimits:
        return self.inner.limits

    async def play(self, group: Group, plan: Play) -> Rollout:
        WHO.set(f"{group.key.id}.{plan.index}.{plan.attempt}")
        return await self.inner.play(group, plan)


class Told:
    """Hears the ledger."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], object] = lambda event: None

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def named(self, name: str) -> list[Mapping[str, Value]]:
        """What all events of this name said, in order."""
        return [event.values for event in self.events if event.name == name]


class Book(list[tuple[str, float]]):
    """(rollout, return) of everything that a learner was given, as credit sees it."""

    def enter(self, groups: Sequence[Group]) -> Forest:
        """Write down one update's groups."""
        forest = Forest.of(groups)
        self.extend((r.id, float(value)) for r, value in zip(forest.rollouts, forest.returns, strict=True))
        return forest


class BookTrainer:
    """A learner that takes credit, keeps a book, and makes a new version of every batch."""

    def __init__(self) -> None:
        self.version = 0
        self.book = Book()

    def train(self, groups: Sequence[Group]) -> TrainReport:
        collapsed, _ = assign(self.book.enter(groups), Grpo(), TokenMean())
        self.version += 1
        return TrainReport(
            version=self.version, loss=0.0, grad_norm=float(collapsed.mass.sum()), lr=1.0, tokens_trained=1, seconds=0.0
        )

    def publish(self) -> WeightRef:
        return WeightRef(version=self.version)

    def save(self, folder: Path, *, beside: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        for name, text in beside.items():
            (folder / name).write_text(text, encoding="utf-8")


@dataclass(kw_only=True)
class Lab:
    """One run and its parts."""

    folder: Path | None
    """Where run.db lies; None keeps none."""
    config: PipelineConfig
    make_env: Callable[[], Any]
    engine: Any
    trainer: Trainer = field(default_factory=BookTrainer)
    book: Book = field(default_factory=Book)
    """What the trainer was given; the trainer's own."""
    taskset: Taskset = field(default_factory=lambda: EchoTaskset(("yes",), data={"turns": 2}))
    renderer: Rendering = field(default_factory=ByteRenderer)
    rewards: Rewards = field(default_factory=lambda: Rewards(main="correct"))
    host: HostConfig = field(default_factory=HostConfig)
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    clock: Clock = field(default_factory=SystemClock)
    saves: bool = False
    """Whether there are checkpoints."""
    seed: int = 7
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        if isinstance(self.trainer, BookTrainer):
            self.book = self.trainer.book

    async def run(self) -> LoopReport:
        """The loop from its first ticket to its last."""
        with ExitStack() as stack:
            store = None
            if self.folder is not None:
                store = stack.enter_context(TrajectoryStore(self.folder, clock=self.clock))
            thread = stack.enter_context(BlockingThread())
            report = await self._loop(store, thread).run()
        return report

    def _loop(self, store: TrajectoryStore | None, thread: BlockingThread) -> Loop:
        config, meter = self.config, StageMeter(self.clock)
        listener: Listener = self.told if store is None else Fanout(store, self.told)
        ledger = Ledger(listener, meter=meter, rewards=self.rewards)
        player = Player(
            self.engine, self.renderer, limits=self.limits, rewards=self.rewards, meter=meter,
            make_host=lambda: EnvHost(self.make_env, config=self.host, clock=self.clock),
        )
        checkpoints = None
        if self.saves and self.folder is not None:
            checkpoints = Checkpoints(
                self.folder / "checkpoints", trainer=self.trainer, thread=thread, ledger=ledger, books=store
            )
        return Loop(config, LoopParts(
            taskset=self.taskset, trainer=self.trainer, engine=self.engine, ledger=ledger, thread=thread,
            player=GroupPlayer(
                Marked(player), size=config.group_size, seed=Stream(self.seed), watcher=ledger,
                retries=RetryBudget(infra=config.infra_retries, env=config.env_retries, wait_s=RETRY_S),
            ),
            filters=default_filters(config, rewards=self.rewards, min_rollouts=2), sink=store, store=store,
            checkpoints=checkpoints,
        ))
