"""What checked copies of the weights catch, and what the checks cost: seconds per publish, load and check."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import machine
from treadle.inference import CopiedEngine, EngineConfig
from treadle.models import Policy, build_tiny
from treadle.models.published import publish
from treadle.testing.weight_faults import FAULTS, Fault
from treadle.testing.weights_kit import WeightsKit

LINE = "copied weights: faults planted and caught, seconds per publish, load and check"
FORGETFUL = (sys.executable, "-m", "treadle.testing.skipping_child")
CONFIG = EngineConfig(slots=16, context=256, kv_budget_tokens=8192)


async def plant(policy: Policy, folder: Path) -> dict[str, str]:
    """Fault to the message that refused it; empty for one that was let through."""
    said: dict[str, str] = {}
    async with CopiedEngine(policy.folder, CONFIG) as engine:
        kit = WeightsKit(engine, policy, folder / "sound")
        for name, fault in FAULTS.items():
            said[name] = await _message(kit, name, fault, sound_first=True)
    async with CopiedEngine(policy.folder, CONFIG, command=FORGETFUL) as engine:
        kit = WeightsKit(engine, policy, folder / "forgetful")
        said["skipped_by_the_loader"] = await _message(kit, "skipped_by_the_loader", lambda old, new: new)
    return said


async def _message(kit: WeightsKit, name: str, fault: Fault, *, sound_first: bool = False) -> str:
    old = await kit.good() if sound_first else kit.publish()
    try:
        return await kit.catches(name, fault, old)
    except AssertionError:
        return ""


async def times(policy: Policy, folder: Path, *, repeats: int) -> dict[str, float]:
    """Medians over `repeats` publishes. check_s: checksum of every tensor against the publisher's, and the canary."""
    published, loaded, checked = [], [], []
    async with CopiedEngine(policy.folder, CONFIG) as engine:
        for _ in range(repeats):
            begun = time.perf_counter()
            ref = publish(policy, folder / "timed")
            published.append(time.perf_counter() - begun)
            await engine.load(ref)
            values = engine.statistics().values
            loaded.append(values["load_s"])
            checked.append(values["check_s"])
    return {
        "publish_s": statistics.median(published), "load_s": statistics.median(loaded),
        "check_s": statistics.median(checked),
    }


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--model", default="", help="model that is timed (default: a tiny one built on the spot)")
    parser.add_argument("--repeats", type=int, default=5, help="publishes that are timed (default 5)")


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = Policy.load(build_tiny(folder / "model"))
        said = asyncio.run(plant(tiny, folder))
        timed = Policy.load(args.model) if args.model else tiny
        seconds = asyncio.run(times(timed, folder, repeats=args.repeats))
        size = sum(p.numel() * p.element_size() for p in timed.module.parameters())
    return {
        "planted": len(said), "caught": sum(bool(message) for message in said.values()),
        "all_caught": all(said.values()), **seconds, "weights_mb": size / 1e6, "messages": said, **machine(),
    }
