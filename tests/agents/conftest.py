"""A player over fakes, on a virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from treadle.agents.group_player import GroupPlayer, RetryBudget
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Play, Player
from treadle.agents.stages import StageMeter
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.snapshots import SnapshotStore
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.testing.virtual_clock import VirtualClock
from treadle.trajectory.group import Group, GroupKey


def made(env):
    """Made on the event loop, so that no thread is needed."""

    async def make():
        return env()

    return make


@dataclass
class Stage:
    """Everything that plays, over one clock."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    host: HostConfig = field(default_factory=HostConfig)
    snapshots: SnapshotStore = field(default_factory=SnapshotStore)
    hosts: list = field(default_factory=list)
    """Every host that was made."""

    def engine(self, script, **options) -> ScriptedEngine:
        return ScriptedEngine(script, clock=self.clock, **options)

    def player(self, engine, *, env: Callable = EchoEnv, limits=None, rewards=None) -> Player:
        return Player(
            engine, ByteRenderer(), make_host=lambda: self.make_host(env),
            limits=limits or RolloutLimits(), rewards=rewards or Rewards(), meter=StageMeter(self.clock),
        )

    def make_host(self, env) -> EnvHost:
        host = EnvHost(made(env), config=self.host, clock=self.clock, snapshots=self.snapshots)
        self.hosts.append(host)
        return host

    @property
    def open_hosts(self) -> int:
        """Hosts that hold an environment."""
        return sum(host._freed is None or not host._freed.done() for host in self.hosts)

    def groups(
        self, engine, *, size=4, retries=None, watcher=None, spare=0, branching=None, **options
    ) -> GroupPlayer:
        return GroupPlayer(
            self.player(engine, **options), size=size, retries=retries or RetryBudget(), seed=Stream(7),
            watcher=watcher, spare=spare, branching=branching,
        )

    def group(self, ticket: int = 0) -> Group:
        return Group(GroupKey(id=f"g{ticket}", ticket=ticket, task="t", family="", split="train", admitted_version=0))

    def plan(self, *, data=None, index=0, attempt=0, word="yes") -> Play:
        task = EchoTaskset((word,), data=data).task("train", 0)
        return Play(
            task=task, index=index, attempt=attempt, env_seed=Stream(7).at("env", 0),
            sample_stream=Stream(7).at("ticket", 0, "rollout", index, "attempt", attempt),
        )

    def play(self, engine, *, data=None, group=None, **options):
        """One rollout to its end: the group and the ended rollout."""
        group = group or self.group()
        return group, self.clock.run(self.player(engine, **options).play(group, self.plan(data=data)))


@pytest.fixture
def stage() -> Stage:
    return Stage()
