"""Faults of the machine that a run is on, each injected into a real run of the pipeline.

    clock_jumps           the wall clock is set years forward and back, the monotonic one loses minutes
    database_locked       another process takes SQLite's write lock again and again, and keeps an old snapshot open
    sigterm               real SIGTERMs: the process must finish its update, save, and leave a run that goes on
    disk_full_checkpoint  see `bench.fault_disk`, which runs on a small file system of its own
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.fault_judge import Verdict, judge
from bench.fault_lab import Injector, Lab, Setting
from bench.fault_worlds import CONFIG, FaultyEnv, mixed, takes
from bench.kill_resume import Tally, killed_run
from treadle.core.clock import SystemClock
from treadle.core.events import Event, Value
from treadle.testing.scripted_engine import ScriptedEngine
from treadle.trajectory.store import TrajectoryStore

ROOT = Path(__file__).parents[1]
CHILD_S = 60.0
"""Deadline of one process that a kind starts."""


# -- clock_jumps -----------------------------------------------------------------------------------------------

DAY_S = 86_400.0
JUMPS = (
    ("wall", DAY_S), ("wall", -3 * DAY_S), ("now", 90.0), ("wall", 3650 * DAY_S), ("wall", -9000 * DAY_S), ("now", 5.0),
)
"""Which clock, by how many seconds. A monotonic clock only ever goes forward: the machine slept."""
EVENTS_TO_A_JUMP = 17


class JumpingClock(SystemClock):
    """The system's clock under somebody else's hands."""

    def __init__(self) -> None:
        self.ahead_s = {"wall": 0.0, "now": 0.0}

    def now(self) -> float:
        return super().now() + self.ahead_s["now"]

    def wall(self) -> float:
        return super().wall() + self.ahead_s["wall"]


def clock_jumps(setting: Setting) -> Verdict:
    """Nothing ends otherwise, and no figure of the run is negative, infinite or a share beyond 1."""
    clock, jumps, count = JumpingClock(), itertools.cycle(JUMPS), itertools.count(1)

    def react(event: Event) -> None:
        if next(count) % EVENTS_TO_A_JUMP == 0:
            which, seconds = next(jumps)
            setting.injector.note(f"{which} jumps by {seconds:g} s")
            clock.ahead_s[which] += seconds

    lab = Lab(
        folder=setting.folder, config=replace(CONFIG, updates=setting.updates(8)), clock=clock, saves=True,
        make_env=lambda: FaultyEnv(setting.injector), engine=ScriptedEngine(mixed, latency=takes),
    )
    lab.told.react = react
    asyncio.run(lab.run())
    verdict = judge(lab, setting.injector.faults)
    for event in lab.told.events:
        verdict.wrong += [f"{event.name} says {key}={value}" for key, value in event.values.items() if _odd(key, value)]
    return verdict


def _odd(key: str, value: Value) -> bool:
    if not isinstance(value, float) or not key.endswith(("_s", "_share")):
        return False
    return not math.isfinite(value) or value < 0 or (key.endswith("_share") and value > 1)


# -- database_locked -------------------------------------------------------------------------------------------

LOCKER = """
import json, select, sqlite3, sys, time
path, journal = sys.argv[1:]
def note(what):
    with open(journal, "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "database_locked", "what": what}) + "\\n")
reader, writer = (sqlite3.connect(path, isolation_level=None, timeout=30) for _ in range(2))
note("an old snapshot is kept open by another process")
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM events").fetchone()
while not select.select([sys.stdin], [], [], 0.05)[0]:
    note("the write lock is held by another process")
    writer.execute("BEGIN IMMEDIATE")
    time.sleep(0.1)
    writer.execute("ROLLBACK")
"""
"""Locks until its standard input is closed, and keeps its snapshot until it ends."""


def database_locked(setting: Setting) -> Verdict:
    """All events of the run are in run.db, in order; every update waits for its checkpoint's books."""
    journal = setting.injector.journal
    TrajectoryStore(setting.folder, clock=SystemClock()).close()  # its tables are there when the locker comes
    command = [sys.executable, "-c", LOCKER, str(setting.folder / "run.db"), str(journal)]
    lab = Lab(
        folder=setting.folder, config=replace(CONFIG, updates=setting.updates(12), save_every=1), saves=True,
        make_env=lambda: FaultyEnv(setting.injector), engine=ScriptedEngine(mixed, latency=takes),
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE) as locker:
        try:
            give_up = time.monotonic() + CHILD_S
            while _lines(journal) < 2 and locker.poll() is None and time.monotonic() < give_up:
                time.sleep(0.005)
            asyncio.run(lab.run())
            verdict = judge(lab, setting.injector.faults)
        finally:
            assert locker.stdin is not None
            locker.stdin.close()
            locker.wait(CHILD_S)
    verdict.require(locker.returncode == 0, f"the locking process ended with {locker.returncode}")
    return verdict


# -- sigterm ---------------------------------------------------------------------------------------------------

UPDATES, TERMS = 24, 5
"""Updates of a run that is stopped, and how often it is."""


def sigterm(setting: Setting) -> Verdict:
    """Each process leaves with 0 and a checkpoint of the version it had; the run ends as one that was never stopped."""
    verdict = Verdict()
    setting.folder.mkdir(parents=True, exist_ok=True)
    for lag in (0, 1) if setting.size >= 1 else (1,):
        options = ("--lag", str(lag), "--updates", str(UPDATES))
        meant, _ = killed_run(setting.folder, f"undisturbed-{lag}", (), *options)
        run, journal = setting.folder / f"stopped-{lag}", setting.folder / f"stopped-{lag}.jsonl"
        for number in range(setting.updates(TERMS)):
            after = 3 + int(27 * setting.injector.draw(lag, number))
            _stop(run, journal, options, after=after, injector=setting.injector, verdict=verdict)
        found, _ = killed_run(setting.folder, run.name, (), *options)
        tally = Tally()
        tally.judge(found, meant)
        verdict.require(tally.lost == 0, f"lag {lag}: {tally.lost} groups were lost")
        verdict.require(tally.twice == 0, f"lag {lag}: {tally.twice} groups were trained twice")
        verdict.require(tally.same, f"lag {lag}: other groups, or another order, than without a stop")
    return verdict


def _stop(
    run: Path, journal: Path, options: Sequence[str], *, after: int, injector: Injector, verdict: Verdict
) -> None:
    """Let a process go on until its journal has so many more lines, then ask it to stop, and look at what it left."""
    meant = _lines(journal) + after
    command = [sys.executable, "-m", "bench.killable", str(run), str(journal), *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        give_up = time.monotonic() + CHILD_S
        while process.poll() is None and _lines(journal) < meant and time.monotonic() < give_up:
            time.sleep(0.002)
        if process.poll() is not None:
            return  # it was done before
        injector.note(f"SIGTERM after {after} lines")
        process.terminate()
        try:
            status = process.wait(CHILD_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    last = json.loads(journal.read_text(encoding="utf-8").splitlines()[-1])
    verdict.require(status == 0, f"a process that was asked to stop ended with {status}")
    if last["what"] not in ("stopped", "done"):
        verdict.wrong.append(f"a process that was asked to stop left in the middle, its last word is {last['what']}")
        return
    saved = run / "checkpoints" / f"version-{last['version']:06d}"
    verdict.require(saved.is_dir(), f"a process that was asked to stop left no checkpoint of version {last['version']}")


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


# -- disk_full_checkpoint --------------------------------------------------------------------------------------

DISK_BYTES = 24_000_000


def disk_full_checkpoint(setting: Setting) -> Verdict:
    """Run `bench.fault_disk` on a file system of 24 MB in memory. Bubblewrap makes it: root is not needed."""
    disk = setting.folder / "disk"
    disk.mkdir(parents=True)
    command = [
        "bwrap", "--dev-bind", "/", "/", "--size", str(DISK_BYTES), "--tmpfs", str(disk), "--die-with-parent",
        sys.executable, "-m", "bench.fault_disk", str(disk), str(setting.folder / "plain"),
        str(setting.injector.journal),
    ]
    made = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=2 * CHILD_S, check=True, text=True)
    return Verdict(wrong=json.loads(made.stdout.splitlines()[-1]))
