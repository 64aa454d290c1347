"""kill -9 of a real run, resumed each time: was anything lost, or trained twice, and are the weights the same?

Child processes run the real pipeline and store around a fake engine, environment and learner (`bench.killable`) and
kill themselves with SIGKILL at chosen points: a random event of the ledger, the middle of an update, of a checkpoint,
of a publish. Each run is killed several times and then left alone until it is done. The verdict comes from a journal
outside of the run that the fake environment and the fake learner keep: the chain of versions that ends at the last
weights says which groups count, and must hold exactly what an undisturbed run's holds.

Then a real run of the tiny model (`bench.killable_tiny`) is killed in its cold start, while it generates and while it
trains; its weights must be bit for bit those of an undisturbed run. It runs in deterministic mode: without it
undisturbed runs differ in the last bits, too.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LINE = "kill -9 anywhere, resume: groups lost, groups trained twice, equal weights"
INSIDE = ("update", "checkpoint", "publish")
KILLED = -9
CHILD_S = 300.0
"""Deadline of one child."""
TINY_KILLS = ("coldstart.update:1", "rollout.done:9", "update.started:2", "rollout.done:5")
"""Where the real run is killed, one after the other."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What the journal says about the weights of the end."""

    digest: str
    groups: tuple[tuple[int, str, str], ...]
    """(ticket, task, content) of every trained group that these weights come from, in order."""
    scored: int
    """Rollouts that the environment scored, all processes together."""

    @classmethod
    def of(cls, journal: Path) -> Chain:
        """Walk back from the last line."""
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        made = {line["digest"]: line for line in lines if line["what"] == "trained"}
        assert lines[-1]["what"] == "done", f"{journal}: the last process did not finish"
        at = lines[-1]["digest"]
        updates = []
        while at != "begin":
            updates.append(made[at]["groups"])
            at = made[at]["parent"]
        groups = tuple((ticket, task, content) for update in reversed(updates) for ticket, task, content in update)
        return cls(lines[-1]["digest"], groups, sum(line["what"] == "scored" for line in lines))


@dataclass(slots=True)
class Tally:
    """Verdicts over all runs of one lag."""

    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    same: bool = True
    """Every run trained the same groups in the same order, with the same content."""
    again: int = 0
    """Rollouts that were played again."""

    def judge(self, found: Chain, meant: Chain) -> None:
        """One finished run."""
        held = Counter(ticket for ticket, _, _ in found.groups)
        self.lost += len({ticket for ticket, _, _ in meant.groups} - set(held))
        self.twice += sum(times - 1 for times in held.values())
        self.same = self.same and found.digest == meant.digest and found.groups == meant.groups
        self.again += found.scored - meant.scored


def child(module: str, *words: str) -> int:
    """Run a module of this package as a process: its exit status, KILLED when it was."""
    made = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *words], cwd=Path(__file__).parents[1], timeout=CHILD_S, check=False,
        stdout=subprocess.DEVNULL,
    )
    if made.returncode not in (0, KILLED):
        raise RuntimeError(f"bench.{module} {' '.join(words)}: exit status {made.returncode}")
    return made.returncode


def killed_run(folder: Path, name: str, kills: Sequence[str], *options: str) -> tuple[Chain, list[str]]:
    """One run, killed at these points and then left alone: its chain, and the kills that came to pass."""
    run, journal = str(folder / name), folder / f"{name}.jsonl"
    done = [kill for kill in kills if child("killable", run, str(journal), *options, "--kill", kill) == KILLED]
    child("killable", run, str(journal), *options)  # on a run that is done it only says so
    return Chain.of(journal), done


def measure(*, lag: int, events: int, inside: int, updates: int = 10, each: int = 4, seed: int = 0) -> Tally:
    """So many kills at random events and inside of each of INSIDE, `each` per run."""
    rng, tally = random.Random(f"{seed}:{lag}"), Tally()
    options = ("--lag", str(lag), "--updates", str(updates))
    with tempfile.TemporaryDirectory(prefix="treadle-kills-") as scratch:
        meant, _ = killed_run(Path(scratch), "undisturbed", (), *options)
        wanted = Counter({"event": events} | dict.fromkeys(INSIDE, inside))
        number = 0
        while left := [where for where, count in (wanted - tally.kills).items() for _ in range(count)]:
            chosen = rng.sample(left, min(each, len(left)))
            # a process that goes on passes fewer points than one that begins
            kills = [f"{where}:{rng.randint(1, 60 if where == 'event' else 2)}" for where in chosen]
            found, done = killed_run(Path(scratch), f"run-{number}", kills, *options)
            tally.kills.update(kill.partition(":")[0] for kill in done)
            tally.judge(found, meant)
            number += 1
    return tally


def tiny_weights(runs: Path, kills: Sequence[str], *, slots: int) -> dict[str, bytes]:
    """The last checkpoint's weights and moments of a real run that is killed at these points."""
    options = ("--slots", str(slots))
    for kill in kills:
        resume = [word for path in runs.glob("killable-*") for word in ("--resume", str(path))]
        child("killable_tiny", str(runs), *options, *resume, "--kill", kill)
    resume = [word for path in runs.glob("killable-*") for word in ("--resume", str(path))]
    child("killable_tiny", str(runs), *options, *resume)
    (run,) = runs.glob("killable-*")
    last = max((run / "checkpoints").glob("version-*"))
    files = ("model/model.safetensors", "optimiser.safetensors", "learner.json")
    return {"version": last.name.encode(), **{name: (last / name).read_bytes() for name in files}}


def equal_weights(*, slots: int = 8, kills: Sequence[str] = TINY_KILLS) -> bool:
    """Whether the killed run ends bit for bit like the undisturbed one."""
    with tempfile.TemporaryDirectory(prefix="treadle-kills-") as scratch:
        meant, found = (
            tiny_weights(Path(scratch) / name, chosen, slots=slots) for name, chosen in (("a", ()), ("b", kills))
        )
    return meant == found


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--events", type=int, default=15, help="kills at random events, at each lag (default 15)")
    parser.add_argument("--inside", type=int, default=3, help="kills inside of each kind, at each lag (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the random points")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    lags = {lag: measure(lag=lag, events=args.events, inside=args.inside, seed=args.seed) for lag in (0, 1)}
    kills = lags[0].kills + lags[1].kills
    return {
        "kills": kills.total(), "kills_at_events": kills["event"],
        **{f"kills_inside_{where}": kills[where] for where in INSIDE},
        "lost": sum(tally.lost for tally in lags.values()), "trained_twice": sum(t.twice for t in lags.values()),
        "rollouts_played_again": sum(tally.again for tally in lags.values()),
        "same_groups_lag0": lags[0].same, "same_groups_lag1": lags[1].same,
        "bitwise_equal_weights_lag0": equal_weights(),
    }
