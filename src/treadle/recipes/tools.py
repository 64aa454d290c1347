"""Tools: what every stage of a run uses. `compose` makes them, a run holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from treadle.core.clock import SystemClock
from treadle.envs.cassette import Cassette
from treadle.envs.host import Host
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.task import Taskset
from treadle.learner.annotate import Answers
from treadle.learner.process_reward import ProcessReward
from treadle.models.policy import Policy
from treadle.recipes.memory import MemoryPlan
from treadle.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every stage of a run uses."""

    taskset: Taskset
    policy: Policy
    renderer: Renderer
    clock: SystemClock
    make_host: Callable[[], Host]
    cassette: Cassette | None = None
    """What the hosts record on or play; the run closes it. None when the world plays and nothing is kept."""
    snapshots: SnapshotStore = field(default_factory=SnapshotStore)
    """Where the hosts keep the states that rollouts are forked from."""
    memory: MemoryPlan | None = None
    """What the recipe's budget of memory gives; None when it has none."""
    answers: Answers | None = None
    """Reference answers of tasks, where a rule asks for them."""
    prm: ProcessReward | None = None
    """Pays every action; None pays what the world pays."""
