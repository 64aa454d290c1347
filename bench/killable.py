"""A run that can be killed anywhere: the real pipeline and store around a fake engine, environment and learner.

    python -m bench.killable FOLDER JOURNAL [--lag L] [--slack S] [--updates U] [--branching NAME] [--kill WHERE:N]

It begins, or goes on with what FOLDER holds. The environment and the learner write what they did into JOURNAL, a file
outside of the run that only ever grows, one write a line. The learner's weights are a digest of everything that it
trained on, in order, so the journal's lines form a chain of versions and the last one says which of them count.

WHERE is a point at which the process kills itself with SIGKILL, at its N-th passage: `event` (an event of the ledger is
told), `update` (half of a batch is trained), `checkpoint` (half of it is written), `publish` (the weights are new, the
engine does not serve them yet). A SIGTERM asks the run to stop, as it does every run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from treadle.agents.branchings import BRANCHING
from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Player
from treadle.agents.stages import StageMeter
from treadle.core.clock import SystemClock
from treadle.core.errors import StoreError
from treadle.core.events import Event, Fanout
from treadle.core.messages import Message
from treadle.core.ports import WeightRef
from treadle.core.seeds import Stream
from treadle.envs.env import EnvContext
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.task import Task
from treadle.pipeline.checkpoints import Checkpoints, Mark, begin_at
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.curriculum import ByDifficulty, InTicketOrder
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.loop import Loop, LoopParts, default_filters
from treadle.pipeline.past import Past
from treadle.pipeline.trainer import BlockingThread, TrainReport
from treadle.recipes.blocking import Brake, block
from treadle.testing.byte_renderer import ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.testing.scripted_engine import ScriptedEngine, Turn
from treadle.trajectory.group import Group
from treadle.trajectory.store import TrajectoryStore

GROUP, BATCH = 4, 3
"""Rollouts of a group, groups of an update."""
TREES = {name: kind for name, kind in BRANCHING.items() if name != "expand"}  # that one has to know most turns
LAG_FREE = InTicketOrder()
"""With a lag, what a choice by success knows depends on who was faster; task number = ticket does not."""


class Journal:
    """Lines of JSON, each one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(self, what: str, **facts: object) -> None:
        os.write(self._file, (json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n").encode())


class Killer:
    """Kills this process at the N-th passage of one point."""

    def __init__(self, journal: Journal, where: str, number: int) -> None:
        self.journal, self.where, self.left = journal, where, number

    def at(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                self.journal.tell("kill", where=where)
                os.kill(os.getpid(), signal.SIGKILL)

    def emit(self, event: Event) -> None:
        self.at("event")


class JournalEnv(EchoEnv):
    """Two turns; tells what it scored."""

    journal: Journal

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        self.id = task.id
        return await super().reset(task, ctx)

    async def score(self) -> Mapping[str, float]:
        self.journal.tell("scored", task=self.id, heard=self.heard)
        return await super().score()


class ChainTrainer:
    """A learner whose weights are the digest of all that it was trained on, in order."""

    def __init__(self, journal: Journal, killer: Killer) -> None:
        self.journal, self.killer = journal, killer
        self.version, self.digest = 0, "begin"

    def train(self, groups: Sequence[Group]) -> TrainReport:
        parent = self.digest
        content = [[group.key.ticket, group.key.task, digest_of(group)] for group in groups]
        self.killer.at("update")
        self.digest = hashlib.sha256(json.dumps([parent, content]).encode()).hexdigest()
        self.version += 1
        self.journal.tell("trained", parent=parent, digest=self.digest, groups=content, version=self.version)
        return TrainReport(version=self.version, loss=0.0, grad_norm=1.0, lr=1.0, tokens_trained=1, seconds=0.0)

    def publish(self) -> WeightRef:
        self.killer.at("publish")
        return WeightRef(version=self.version)

    def save(self, folder: Path, *, beside: Mapping[str, str]) -> None:
        half = folder.parent / f".{folder.name}.half.tmp"
        half.mkdir()
        (half / "weights.json").write_text(json.dumps([self.version, self.digest]))
        self.killer.at("checkpoint")
        for name, text in beside.items():
            (half / name).write_text(text)
        shutil.rmtree(folder, ignore_errors=True)  # one that cannot be read may be in the way
        half.rename(folder)

    def restore(self, folder: Path, mark: Mark) -> None:
        try:
            self.version, self.digest = json.loads((folder / "weights.json").read_text())
        except (OSError, ValueError) as error:
            raise StoreError(f"checkpoint {folder}: {error}") from error


def digest_of(group: Group) -> str:
    """Of what its rollouts sampled and were paid, in the order of their places; versions do not count."""
    said = [
        [rollout.index, rollout.reward, [s.ids.tolist() for s in group.path(rollout.leaves[-1]) if s.is_action]]
        for rollout in group.valid
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def says(turn: Turn) -> str:
    """A word that depends on the rollout's own stream alone."""
    return "yes" if turn.request.stream.uniform(0) < 0.4 else "no"


def takes(turn: Turn) -> float:
    """Seconds, with a tail."""
    return min(0.002 * turn.request.stream.at("latency").python().lognormvariate(0.0, 1.0), 0.05)


async def run(
    brake: Brake, folder: Path, journal: Journal, killer: Killer, *, lag: int, slack: int, updates: int,
    branching: str = "none",
) -> None:
    """Begin, or go on."""
    clock, rewards = SystemClock(), Rewards(main="correct")
    config = PipelineConfig(
        group_size=GROUP, groups_per_update=BATCH, updates=updates, lag=lag, max_staleness=lag + slack, save_every=3
    )
    taskset = EchoTaskset(("yes", "no", "other"), data={"turns": 2})
    engine = ScriptedEngine(says, clock=clock, latency=takes)
    trainer = ChainTrainer(journal, killer)
    with TrajectoryStore(folder, clock=clock) as store, BlockingThread() as thread:
        past, remains = Past.read(store.path, updates=updates, trees=branching != "none")
        store.clear(remains)
        meter = StageMeter(clock)
        ledger = Ledger(Fanout(store, killer), meter=meter, rewards=rewards, past=past)
        saved = folder / "checkpoints"
        _, mark = begin_at(saved, trainer.restore, say=lambda line: journal.tell("said", line=line))
        await engine.load(WeightRef(version=trainer.version))
        JournalEnv.journal = journal
        host = HostConfig()
        player = Player(
            engine, ByteRenderer(), make_host=lambda: EnvHost(JournalEnv, config=host, clock=clock),
            limits=RolloutLimits(), rewards=rewards, meter=meter,
        )
        plan = ByDifficulty() if lag == 0 else LAG_FREE
        ledger.tell("run.resumed" if past.began else "run.started", {"updates": updates})
        loop = Loop(config, LoopParts(
            taskset=taskset, trainer=trainer,
            player=GroupPlayer(player, size=GROUP, seed=Stream(7), watcher=ledger, branching=TREES[branching]()),
            engine=engine,  # type: ignore[arg-type]  # nobody asks this one how busy it is
            ledger=ledger, thread=thread, sink=store, store=store, begin=mark,
            filters=default_filters(config, rewards=rewards, min_rollouts=2),
            curriculum=plan.begin(taskset, group_size=GROUP, rewards=rewards, seed=Stream(7)),
            checkpoints=Checkpoints(saved, trainer=trainer, thread=thread, ledger=ledger, books=store, keep=2),
        ))
        with brake.governs(loop.stop):
            report = await loop.run()
    journal.tell(
        "done" if report.reason == "done" else "stopped", digest=trainer.digest, version=trainer.version,
        updates=report.updates, worst_staleness=report.worst_staleness,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.killable")
    parser.add_argument("folder", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--slack", type=int, default=0, help="how far max_staleness is beyond the lag")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--branching", default="none", choices=sorted(TREES))
    parser.add_argument("--kill", default="never:1", metavar="WHERE:N")
    args = parser.parse_args()
    journal = Journal(args.journal)
    where, _, number = args.kill.partition(":")
    killer = Killer(journal, where, int(number))
    block(lambda brake: run(
        brake, args.folder, journal, killer, lag=args.lag, slack=args.slack, updates=args.updates,
        branching=args.branching,
    ))
    return 0


if __name__ == "__main__":
    sys.exit(main())
