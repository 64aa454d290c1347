"""`treadle simulate`: schedules, lags and fleet sizes against each other, in virtual time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # looking for help must not load a pipeline
    from treadle.testing.simulator import Scenario, Simulated

SCHEDULES = ("tickets", "strict", "freshest", "shortest", "learnability", "dynamic", "redundant")
HEAD = (
    f"{'schedule':<13}{'lag':>4}{'bound':>6}{'engines':>8}{'rollouts/s':>11}{'of ideal':>9}"
    f"{'idle: fleet':>12}{'learner':>8}{'staleness':>10}{'wasted':>7}  slowest"
)


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "simulate", help="compare schedules, lags and fleet sizes without a model",
        description="Run the real pipeline over simulated engines, agents and a learner, in virtual time. Options that "
        "take several values, separated by commas, are combined in every way.",
    )
    several = {
        "--schedules": ("tickets,strict", f"of {', '.join(SCHEDULES)} (default tickets,strict)"),
        "--lags": ("1", "updates that generation may run ahead (default 1)"),
        "--slacks": ("0,1", "versions that max_staleness is above the lag (default 0,1)"),
        "--engines": ("64", "engines of the fleet (default 64)"),
    }
    for name, (default, text) in several.items():
        command.add_argument(name, default=default, metavar="A,B", help=text)
    numbers = {
        "--slots": (1, "rollouts that an engine serves at a time"), "--groups": (96, "groups of one update"),
        "--group-size": (8, "rollouts of a group"),
        "--spares": (0, "rollouts of a group that are started beyond them"), "--updates": (12, "updates of each run"),
        "--median-tokens": (500, "median length of a rollout"), "--most-tokens": (16384, "where a rollout is cut"),
        "--seed": (0, "root of all random streams"),
    }
    for name, (number, text) in numbers.items():
        command.add_argument(name, type=int, default=number, help=f"{text} (default {number})")
    shares = {
        "--sigma": (1.5, "spread of lengths, lognormal"), "--env-s": (2.0, "mean seconds of the world between turns"),
        "--learner": (1.3, "what the learner could do, in parts of what the fleet can"),
        "--failing": (0.0, "share of turns after which the environment fails"),
    }
    for name, (share, text) in shares.items():
        command.add_argument(name, type=float, default=share, help=f"{text} (default {share})")
    command.add_argument("--breakdown-s", type=float, help="mean seconds between two breakdowns of an engine")
    command.add_argument("--on-stale", choices=("wait", "drop", "mask"), default="wait", help="see pipeline.on_stale")
    command.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate every combination and print it as soon as it is done."""
    from dataclasses import asdict

    from treadle.testing.simulator import simulate

    if not args.json:
        print(HEAD)
    for scenario in _scenarios(args):
        found = simulate(scenario)
        pipeline = scenario.pipeline
        if args.json:
            print(json.dumps({
                "schedule": pipeline.schedule.name, "lag": pipeline.lag, "max_staleness": pipeline.staleness_bound,
                "engines": scenario.fleet.engines, **asdict(found),
            }), flush=True)
        else:
            print(_line(scenario, found), flush=True)
    return 0


def _scenarios(args: argparse.Namespace) -> Iterator[Scenario]:
    from treadle.core.config import did_you_mean
    from treadle.core.errors import ConfigError
    from treadle.pipeline.config import PipelineConfig
    from treadle.pipeline.orders import SCHEDULES as known
    from treadle.testing.fleet import FleetConfig
    from treadle.testing.simulator import Scenario
    from treadle.testing.workload import Workload

    names = args.schedules.split(",")
    for name in names:
        if name not in known:
            raise ConfigError(f"--schedules: unknown name {name!r}{did_you_mean(name, known)} ({', '.join(known)})")
    lags, slacks, sizes = (_whole(args, key) for key in ("lags", "slacks", "engines"))
    for size in sizes:
        for lag in lags:
            for slack in slacks:
                for name in names:
                    try:
                        fleet = FleetConfig(engines=size, slots=args.slots, breakdown_s=args.breakdown_s)
                        workload = Workload(
                            median_tokens=args.median_tokens, sigma=args.sigma, most_tokens=args.most_tokens,
                            env_s=args.env_s, failing_share=args.failing, family_sigma=args.sigma / 2,
                        )
                    except ValueError as error:
                        raise ConfigError(str(error)) from error
                    yield Scenario(
                        pipeline=PipelineConfig(
                            group_size=args.group_size, groups_per_update=args.groups, updates=args.updates, lag=lag,
                            max_staleness=lag + slack, on_stale=args.on_stale, schedule=known[name](),
                            spare_rollouts=args.spares,
                        ),
                        fleet=fleet, workload=workload, seed=args.seed,
                        train_tokens_per_s=args.learner * fleet.tokens_per_s_all,
                    )


def _whole(args: argparse.Namespace, key: str) -> list[int]:
    from treadle.core.errors import ConfigError

    texts = getattr(args, key).split(",")
    if any(not text.isdigit() for text in texts):
        raise ConfigError(f"--{key}: got {getattr(args, key)!r}, expected whole numbers separated by commas")
    return [int(text) for text in texts]


def _line(scenario: Scenario, found: Simulated) -> str:
    pipeline = scenario.pipeline
    return (
        f"{pipeline.schedule.name:<13}{pipeline.lag:>4}{pipeline.staleness_bound:>6}{scenario.fleet.engines:>8}"
        f"{found.rollouts_per_s:>11.2f}{found.share_of_ideal:>9.1%}{found.generate_idle_share:>12.1%}"
        f"{found.update_idle_share:>8.1%}{found.worst_staleness:>10}{found.wasted_share:>7.1%}  {found.slowest}"
    )
