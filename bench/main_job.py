"""The main job: does a language model learn to use a shell, how well and how fast?

One process per seed runs `treadle train shell`; one more, on the first seed, is the placebo arm, in which the rewards
of each group are dealt out at random. Every figure is read from the run folders' own records. All evaluations of all
arms use the same held-out tasks and the same decoding.

A run ends with the version that its validation chose. Dealing rewards out within a group changes no group's mean, so
validation, whose groups are single rollouts, sees the same in the placebo arm: its last version is evaluated, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import machine, steal_s
from treadle.pipeline.evaluation import Count

LINE = "trains `shell` on several seeds and a placebo arm: success, gain, seconds, memory (about 15 minutes an arm)"
LEVELS = ("easy", "medium")
RUNS = Path("runs/bench-main-job")


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="K=V", help="as in treadle train")
    parser.add_argument("--no-placebo", action="store_true", help="leave the placebo arm out")
    parser.add_argument("--reuse", action="store_true", help="take finished arms of an earlier call that was cut short")


@dataclass(frozen=True)
class Arm:
    """One finished run, as its records tell it."""

    folder: Path
    events: list[dict[str, object]]

    @classmethod
    def read(cls, folder: Path) -> Arm:
        """Read the events of a run folder."""
        lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return cls(folder, [json.loads(line) for line in lines])

    def only(self, name: str, **match: object) -> dict[str, object]:
        """The one event of this name whose values match."""
        found = [e for e in self.events if e["name"] == name and all(e.get(k) == v for k, v in match.items())]
        if len(found) != 1:
            raise SystemExit(f"{self.folder}: {len(found)} events {name} {match}, expected one: the run did not finish")
        return found[0]

    def count(self, label: str, levels: Sequence[str] | None = None) -> Count:
        """Solved and total of an evaluation, over all levels or some."""
        event = self.only("evaluation.done", label=label)
        if levels is None:
            return Count(number(event["solved"]), number(event["total"]))
        return Count(
            sum(number(event.get(f"level.{level}.solved", 0)) for level in levels),
            sum(number(event.get(f"level.{level}.total", 0)) for level in levels),
        )

    @property
    def training_s(self) -> float:
        """Seconds of demonstrations, cold start and reinforcement learning; evaluations are not in it."""
        stages = [self.only("stage.done", stage=stage)["seconds_s"] for stage in ("coldstart", "rl")]
        return sum(map(real, [self.only("coldstart.demos")["seconds_s"], *stages]))


def run(args: argparse.Namespace) -> dict[str, object]:
    """All arms, then the record."""
    stolen = steal_s()
    arms = [_arm(f"seed-{seed}", [f"seed={seed}", *args.sets], reuse=args.reuse) for seed in range(args.seeds)]
    placebo = None if args.no_placebo else _arm("placebo", ["seed=0", "placebo=true", *args.sets], reuse=args.reuse)
    out = record(arms, placebo)
    if placebo is not None:
        out["placebo_last_version_easy_medium"] = said(_last(placebo))
    return {**out, "machine": machine(), "steal_s": steal_s() - stolen}


def record(arms: Sequence[Arm], placebo: Arm | None) -> dict[str, object]:
    """The figures of finished arms."""
    cold = [arm.count("coldstart", LEVELS) for arm in arms]
    final = [arm.count("final", LEVELS) for arm in arms]
    seconds = [arm.training_s for arm in arms]
    evaluated = arms[0].only("evaluation.done", label="final")
    out: dict[str, object] = {
        "seeds": len(arms),
        "families": sum(key.startswith("family.") and key.endswith(".total") for key in evaluated),
        "demonstrations": max(number(arm.only("coldstart.demos")["kept"]) for arm in arms),
        "decoding": f"temperature {real(evaluated['temperature']):g}, one rollout per task",
        "untouched": said(pooled([arm.count("untouched") for arm in arms])),
        "cold_start": {"easy_medium": said(pooled(cold)), "hard": said(pooled(_hard(arms, "coldstart")))},
        "rl": {"easy_medium": said(pooled(final)), "hard": said(pooled(_hard(arms, "final")))},
        "gain_over_cold_start": {"rate": pooled(final).share - pooled(cold).share},
        "median_s": {
            "cold_start_and_rl": statistics.median(seconds),
            "whole_run": statistics.median(real(arm.only("run.done")["seconds_s"]) for arm in arms),
        },
        "peak_rss_gb": max(real(arm.only("run.done")["peak_rss_gb"]) for arm in arms),
        "every_seed_rl_lower_above_cold_start_upper": all(
            after.interval[0] > before.interval[1] for before, after in zip(cold, final, strict=True)
        ),
        "per_seed": {
            "untouched": [said(arm.count("untouched")) for arm in arms],
            "cold_start_easy_medium": [said(count) for count in cold],
            "rl_easy_medium": [said(count) for count in final],
            "rl_hard": [said(count) for count in _hard(arms, "final")],
            "cold_start_and_rl_s": seconds,
            "course": [_course(arm) for arm in arms],
        },
    }
    if placebo is not None:
        before, after = placebo.count("coldstart", LEVELS), placebo.count("final", LEVELS)
        low, high = before.interval
        out["placebo"] = {
            "cold_start_easy_medium": said(before), "final_easy_medium": said(after), **_course(placebo),
        }
        out["placebo_within_cold_start_interval"] = low <= after.share <= high
    return out


def _arm(name: str, sets: Sequence[str], *, reuse: bool) -> Arm:
    home = RUNS / name
    if reuse:
        for folder in sorted(home.glob("shell-*")):
            arm = Arm.read(folder)
            if any(event["name"] == "run.done" and event["reason"] == "done" for event in arm.events):
                return arm
    command = [sys.executable, "-m", "treadle.cli.main", "train", "shell", "--view", "lines"]
    for item in [*sets, f"runs={home}"]:
        command += ["--set", item]
    print(f"# {name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    before = set(home.glob("shell-*"))
    subprocess.run(command, check=True, stdout=sys.stderr)
    return Arm.read((set(home.glob("shell-*")) - before).pop())


def _last(arm: Arm) -> Count:
    """What the arm's last version solves of the same held-out tasks, whichever version the run ended with."""
    if not any(event["name"] == "run.took_back" for event in arm.events):
        return arm.count("final", LEVELS)
    asked = "import json, sys, treadle; found = treadle.evaluate(sys.argv[1], checkpoint='last'); " \
        "print(json.dumps({name: [c.solved, c.total] for name, c in found.levels.items()}))"
    told = subprocess.run([sys.executable, "-c", asked, str(arm.folder)], check=True, stdout=subprocess.PIPE, text=True)
    levels = json.loads(told.stdout.strip().splitlines()[-1])
    return pooled([Count(*levels[level]) for level in LEVELS])


def _course(arm: Arm) -> dict[str, object]:
    """What the tasks that choose a version said along the way, and which version the run ended with."""
    measured = [e for e in arm.events if e["name"] == "evaluation.done" and str(e["label"]).startswith("validation-")]
    return {
        "validation": {str(e["update"]): said(Count(number(e["solved"]), number(e["total"]))) for e in measured},
        "ends_with_version": number(arm.only("evaluation.done", label="final")["version"]),
    }


def _hard(arms: Sequence[Arm], label: str) -> list[Count]:
    return [arm.count(label, ("hard",)) for arm in arms]


def pooled(counts: Sequence[Count]) -> Count:
    """All counts as one."""
    return Count(sum(c.solved for c in counts), sum(c.total for c in counts))


def said(count: Count) -> dict[str, object]:
    """Raw counts, rate and interval."""
    low, high = count.interval
    return {"solved": count.solved, "tasks": count.total, "rate": count.share, "low": low, "high": high}


def number(value: object) -> int:
    """A whole number out of an event."""
    assert isinstance(value, int), f"got {value!r}"
    return value


def real(value: object) -> float:
    """A number out of an event."""
    assert isinstance(value, int | float), f"got {value!r}"
    return float(value)
