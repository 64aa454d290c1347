"""A whole loop over fakes, on a virtual clock: echo worlds, a scripted engine, a trainer that only counts."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from treadle.agents.group_player import GroupPlayer, RetryBudget
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.core.ports import WeightRef
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, default_filters
from treadle.pipeline.trainer import BlockingThread, TrainReport
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import NoSink


class Ears:
    """Keeps every event."""

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)

    def named(self, name):
        return [event.values for event in self.events if event.name == name]

    def names(self):
        return [event.name for event in self.events]


class Shelf(NoSink):
    """Keeps the newest state of every rollout."""

    def __init__(self):
        self.rollouts = {}
        self.ends = Counter()

    def rollout(self, rollout):
        self.rollouts[rollout.id] = rollout
        self.ends[rollout.id] += rollout.outcome is not None


class CountingTrainer:
    """Makes a new version of every batch and remembers what was in it."""

    def __init__(self):
        self.version = 0
        self.batches = []
        self.saved = []
        self.during = None
        """Called in the thread, in the middle of an update."""

    def train(self, groups):
        if self.during is not None:
            self.during()
        oldest = [group.oldest_version for group in groups]
        self.batches.append({"tickets": [g.key.ticket for g in groups], "oldest": oldest, "version": self.version,
                             "rewards": [[r.reward for r in g.valid] for g in groups]})
        self.version += 1
        return TrainReport(version=self.version, loss=0.5, grad_norm=1.0, lr=1e-3, tokens_trained=10, seconds=0.1,
                           stats={"ratio": 1.0})

    def publish(self):
        return WeightRef(version=self.version)

    def save(self, folder: Path, *, beside):
        folder.mkdir(parents=True)
        self.saved.append(self.version)


def mixed(turn):
    """Half of every group says the word, half does not."""
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


@dataclass
class Bench:
    """Parts of a loop, to be changed by a test before `loop()`."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    trainer: CountingTrainer = field(default_factory=CountingTrainer)
    ears: Ears = field(default_factory=Ears)
    shelf: Shelf = field(default_factory=Shelf)
    thread: BlockingThread = field(default_factory=BlockingThread)
    taskset: EchoTaskset = field(default_factory=lambda: EchoTaskset(("yes",)))
    script: object = mixed
    latency: object = lambda turn: 1.0
    host: HostConfig = field(default_factory=HostConfig)
    retries: RetryBudget = field(default_factory=RetryBudget)
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    config: PipelineConfig = field(
        default_factory=lambda: PipelineConfig(group_size=4, groups_per_update=3, updates=4)
    )

    def __post_init__(self):
        self.rewards = Rewards(main="correct")
        self.meter = StageMeter(self.clock)
        self.ledger = Ledger(self.ears, meter=self.meter, rewards=self.rewards)

    def set(self, **changes):
        self.config = replace(self.config, **changes)
        return self

    def engine(self):
        return ScriptedEngine(self.script, clock=self.clock, latency=self.latency)

    def player(self, engine, *, size, seed=7):
        async def make_env():
            return EchoEnv()

        player = Player(
            engine, ByteRenderer(), make_host=lambda: EnvHost(make_env, config=self.host, clock=self.clock),
            limits=self.limits, rewards=self.rewards, meter=self.meter,
        )
        return GroupPlayer(
            player, size=size, retries=self.retries, seed=Stream(seed), watcher=self.ledger,
            spare=self.config.spare_rollouts,
        )

    def loop(self, **parts):
        engine = parts.pop("engine", None) or self.engine()
        made = LoopParts(
            taskset=self.taskset, player=self.player(engine, size=self.config.group_size), trainer=self.trainer,
            engine=engine, ledger=self.ledger, thread=self.thread, sink=self.shelf,
            filters=parts.pop("filters", default_filters(self.config, rewards=self.rewards, min_rollouts=2)), **parts,
        )
        return Loop(self.config, made)

    def run(self, **parts):
        return self.clock.run(self.loop(**parts).run())


@pytest.fixture(scope="session")
def make_bench():
    return Bench


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.thread.close()
