"""The machinery of rollouts alone: the engine answers at once and the world lives in this process.

What is left is what every turn costs: player, host, rendering, segments; and, in the full arm, the real tokenizer, the
store and the ledger. All rollouts are in flight at the same time. Every turn says something else, so that nothing is
found in a cache; its ids are there before the clock starts, as an engine has ids and no text.

Beside it verifiers in one process (`bench.overhead_verifiers`), which passes text and stores nothing; runs alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.closed_wire import ROOT, Side, SideEnded, environment
from bench.machine import machine
from bench.peer_home import python_of
from treadle.agents.group_player import GroupPlayer
from treadle.agents.limits import Rewards, RolloutLimits
from treadle.agents.player import Player
from treadle.agents.ports import Rendering
from treadle.agents.stages import StageMeter
from treadle.core.clock import SystemClock
from treadle.core.heap import settled
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost, HostConfig
from treadle.models.source import resolve
from treadle.pipeline.ledger import Ledger
from treadle.rendering.plain import PlainParser
from treadle.rendering.renderer import Renderer
from treadle.rendering.tokens import Tokens
from treadle.testing import EchoEnv, ScriptedEngine
from treadle.testing.byte_renderer import END, ByteRenderer
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.group import Group, GroupKey
from treadle.trajectory.store import TrajectoryStore

LINE = "turns per second of the rollout machinery alone, with everything and with ids only"
OURS = ("full", "ids_only")
THEIRS = ("run_group", "generate")
"""What is called of verifiers."""
ANSWER_S = 600.0
"""The longest that verifiers may take for one run."""
SAID = "list the files of folder {} and count them"


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--rollouts", type=int, default=1000, help="rollouts in flight (default 1000)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--turns", type=int, default=8, help="turns of a rollout (default 8)")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the median counts (default 3)")
    parser.add_argument("--with-peers", action="store_true", help="install verifiers into its own environment")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    python, missing = python_of("verifiers", create=args.with_peers)
    speeds: dict[str, list[float]] = {arm: [] for arm in (*OURS, *THEIRS)}
    flight = list[int]()
    with ExitStack() as stack:
        peer = None if python is None else stack.enter_context(_started(str(python)))
        for _ in range(args.repeats):
            for arm in OURS:
                with settled():  # as a run does
                    speed, most = asyncio.run(measured(args, everything=arm == "full"))
                speeds[arm].append(speed)
                flight.append(most)
            if peer is not None:
                try:
                    for arm in THEIRS:
                        speeds[arm].append(_asked(peer, arm, args))
                except SideEnded as ended:
                    peer, missing = None, str(ended)
    theirs = {arm: statistics.median(speeds[arm]) for arm in THEIRS if speeds[arm]}
    return {
        "turns_per_s": {arm: statistics.median(speeds[arm]) for arm in OURS},
        "verifiers": f"missing: {missing}" if missing else theirs, "in_flight": min(flight), "turns": args.turns,
        "rollouts": args.rollouts, "repeats": args.repeats, **machine(),
    }


def _started(python: str) -> Side:
    """The peer's process."""
    command = [python, "-m", "bench.overhead_verifiers"]
    return Side("verifiers", command, limit_s=ANSWER_S, environment=environment(PYTHONPATH=ROOT))


def _asked(peer: Side, arm: str, args: argparse.Namespace) -> float:
    """Turns per second of the peer. Raises SideEnded."""
    groups = args.rollouts // args.size
    answer = peer.ask("play", arm=arm, groups=groups, size=args.size, turns=args.turns)
    if answer["in_flight"] != groups * args.size:
        raise SideEnded(f"verifiers had {answer['in_flight']} rollouts in flight, expected {groups * args.size}")
    return float(answer["turns_per_s"])


async def measured(args: argparse.Namespace, *, everything: bool) -> tuple[float, int]:
    """Turns per second, and the most rollouts that were played at the same time."""
    clock, rewards = SystemClock(), Rewards(main="correct")
    taskset = EchoTaskset((SAID,), data={"turns": args.turns})
    renderer, encode, end_id = _renderer(everything)
    words = [SAID.format(number) for number in range(args.rollouts * args.turns)]
    ids = {text: tuple(encode(text)) for text in words}
    with tempfile.TemporaryDirectory() as folder:
        engine = ScriptedEngine(lambda turn: words.pop(), encode=ids.__getitem__, end_id=end_id)
        meter = StageMeter(clock)
        store = TrajectoryStore(Path(folder) / "run.db", clock=clock) if everything else None
        ledger = None if store is None else Ledger(store, meter=meter, rewards=rewards)
        player = Player(
            engine, renderer, make_host=lambda: EnvHost(EchoEnv, config=HostConfig(), clock=clock), meter=meter,
            limits=RolloutLimits(max_turns=args.turns, max_tokens_per_turn=256, max_context=8192), rewards=rewards,
        )
        groups = GroupPlayer(player, size=args.size, seed=Stream(0), watcher=ledger)
        most = 0

        async def play(ticket: int) -> None:
            nonlocal most
            task = taskset.task("train", ticket)
            key = GroupKey(
                id=f"t{ticket:06d}", ticket=ticket, task=task.id, family=task.family, split="train", admitted_version=0
            )
            await groups.play(Group(key, sink=store), task)

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(groups.playing))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        begun = time.perf_counter()
        await asyncio.gather(*(play(ticket) for ticket in range(args.rollouts // args.size)))
        watching.cancel()
        if store is not None:
            await store.settle()
        seconds = time.perf_counter() - begun
        if store is not None:
            store.close()
    return len(engine.requests) / seconds, most


def _renderer(everything: bool) -> tuple[Rendering, Callable[[str], Sequence[int]], int]:
    """A renderer, and how the scripted engine makes ids for it."""
    if not everything:
        return ByteRenderer(), str.encode, END
    folder = resolve("smollm2-135m")
    made = Renderer.load(folder, parser=PlainParser())
    return made, Tokens.load(folder).encode, made.stop_ids[0]
