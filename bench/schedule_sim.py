"""Schedules against each other on the simulator: the real pipeline, long-tailed agents, 64 engines, lag 1.

The scenario is fixed. A batch is 96 groups of 8 rollouts, which is twelve times the rollouts that the fleet plays at
once, as long as the longest rollout takes: with fewer no schedule can keep so small a bound without waiting, because a
rollout cannot end sooner than its own length. The fleet is the slowest stage; the learner could do 1.3 times as much.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.counting import InOrder
from treadle.pipeline.dynamic import UntilFull
from treadle.pipeline.orders import SCHEDULES
from treadle.testing.fleet import FleetConfig
from treadle.testing.simulator import Scenario, Simulated, simulate
from treadle.testing.workload import Workload

LINE = "schedules on the simulator: throughput against the slowest stage, idle shares, staleness, waste"
FLEET = FleetConfig(engines=64, slots=1)
PIPELINE = PipelineConfig(group_size=8, groups_per_update=96, updates=24, lag=1, max_staleness=2)
SCENARIO = Scenario(
    pipeline=PIPELINE, fleet=FLEET, workload=Workload(sigma=1.5),
    train_tokens_per_s=1.3 * FLEET.tokens_per_s_all, update_s=5.0,
)


def pipelines() -> dict[str, PipelineConfig]:
    """Name to what is compared. `default` is ticket order with the counting check."""
    named = {"default": PIPELINE}
    same = (InOrder.name, UntilFull.name)  # the default; and strict order, because nothing is dropped here
    named |= {name: replace(PIPELINE, schedule=SCHEDULES[name]()) for name in SCHEDULES if name not in same}
    tight = replace(PIPELINE, max_staleness=1)
    return named | {
        "default_bound_1": tight, "drop_bound_1": replace(tight, on_stale="drop"),
        "mask_bound_1": replace(tight, on_stale="mask"),
    }


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--updates", type=int, default=PIPELINE.updates, help="batches of each run (default 24)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record: the scenario, a row per schedule, and what held for all of them."""
    rows: dict[str, object] = {}
    bounds, starved = [], []
    for name, pipeline in pipelines().items():
        pipeline = replace(pipeline, updates=args.updates)
        found = simulate(replace(SCENARIO, pipeline=pipeline, seed=args.seed))
        rows[name] = _row(found)
        bounds.append(found.worst_staleness <= pipeline.staleness_bound)
        starved.append(not found.ended_once)
        if pipeline.on_stale == "wait":
            starved.append(found.longest_wait > pipeline.staleness_bound)
    return {
        "scenario": _scenario(args), **rows, "staleness_bound_held": all(bounds), "no_starvation": not any(starved),
    }


def _row(found: Simulated) -> dict[str, object]:
    row = asdict(found)
    return {"throughput_share_of_ideal": row.pop("share_of_ideal"), **row}


def _scenario(args: argparse.Namespace) -> dict[str, object]:
    work = SCENARIO.workload
    return {
        "engines": FLEET.engines, "slots_per_engine": FLEET.slots, "groups_per_update": PIPELINE.groups_per_update,
        "group_size": PIPELINE.group_size, "lag": PIPELINE.lag, "max_staleness": PIPELINE.staleness_bound,
        "updates": args.updates, "seed": args.seed, "sigma": work.sigma, "median_tokens": work.median_tokens,
        "mean_tokens": work.mean_tokens, "most_tokens": work.most_tokens, "tokens_per_turn": work.tokens_per_turn,
        "env_s": work.env_s, "slowest": SCENARIO.slowest,
        "ideal_rollouts_per_s": SCENARIO.capacities[SCENARIO.slowest],
    }
