"""A tree in real shells: every branch goes on with the files and the shell of where it began, and sees no sibling."""

from __future__ import annotations

import asyncio

from treadle.agents.branch_fixed import FixedTree
from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.core.actions import CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.errors import EngineError
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.shell import ShellEnv, ShellTaskset
from treadle.envs.snapshots import SnapshotStore
from treadle.rendering.renderer import Parsed
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.segment import Author


class Commands(ByteRenderer):
    """What is said is a command, but for the last word."""

    def parse(self, ids, *, truncated=False, turn=0):
        text = self.decode(ids)
        block = CodeBlock(language="bash", code=text, closed=True)
        parsed = super().parse(ids, truncated=truncated, turn=turn)
        return Parsed(
            action=type(parsed.action)(text=text, blocks=() if text == "done" else (block,)), spans=parsed.spans
        )


def says(turn):
    """Each rollout signs a file with its place; one fork is lost when it begins."""
    _, index, attempt = turn.rollout.split(".")
    at = dict(zip(turn.request.stream.path[::2], turn.request.stream.path[1::2], strict=False))["turn"]
    if (index, attempt) == ("2", "0"):
        return EngineError("lost")
    return ("mkdir -p box; cd box; export WHO=shared; echo 0 > names", f"echo $WHO {index} >> names", "cat names",
            "done")[at]


async def test_branches_of_real_shells_share_their_start_and_nothing_else(tmp_path):
    clock, store = SystemClock(), SnapshotStore()
    hosts = []

    def make_host():
        hosts.append(EnvHost(ShellEnv, config=HostConfig(), clock=clock, snapshots=store))
        return hosts[-1]

    player = Player(
        ScriptedEngine(says), Commands(), make_host=make_host, limits=RolloutLimits(max_turns=4), rewards=Rewards(),
        meter=StageMeter(clock),
    )
    group = Group(GroupKey(id="g", ticket=0, task="t", family="", split="train", admitted_version=0))
    async with asyncio.timeout(60):
        await GroupPlayer(player, size=2, seed=Stream(7), branching=FixedTree(widths=(2, 2))).play(
            group, ShellTaskset().task("train", 0)
        )
    assert [r.index for r in group.valid] == list(range(8))
    assert [r.id for r in group.rollouts.values() if not r.trains] == ["g.2.0"]
    for rollout in group.valid:
        leaf = group.actions(rollout.id)[-1]
        (seen,) = [s for s in group.path(leaf.id) if s.author is Author.ENV and s.turn == 2]
        signed = [s for s in group.actions(rollout.id) if s.turn == 1]
        who = signed[0].rollout.split(".")[1]
        assert f"0\nshared {who}" in Commands().decode(seen.ids)
        assert Commands().decode(seen.ids).count("shared") == 1
    assert store.statistics().values["snapshots_held"] == 0
    assert store.statistics().values["snapshots_taken"] == 2 + 4
    assert all(host._freed is not None and host._freed.done() for host in hosts)
