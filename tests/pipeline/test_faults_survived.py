"""Faults injected into whole runs, in small: each ends as the outcome table says. `python -m bench faults` does more.

The verdict holds the injector's journal, which lies outside of the run, against the ledger, run.db and what the learner
was given; that it catches what is wrong is tested here, too.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.fault_lab import Injector, Setting  # noqa: E402
from bench.fault_worlds import FaultyEnv, engine_breaks, in_world  # noqa: E402
from bench.faulted import KINDS, play  # noqa: E402
from bench.faults import inject  # noqa: E402

SIZES = {
    "reset_fails": 0.25, "step_hangs": 0.25, "step_raises": 0.25, "grader_crashes": 0.4, "clock_jumps": 0.4,
    "slow_rollout": 1.0, "database_locked": 0.25, "sigterm": 0.4,
}
"""Share of the benchmark's length."""


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines()


def setting(folder: Path, kind: str, size: float) -> Setting:
    return Setting(folder=folder / "run", injector=Injector(folder / "journal.jsonl", kind=kind), size=size)


@pytest.mark.parametrize("kind", SIZES)
def test_a_run_under_faults_ends_as_the_table_says_and_trains_nothing_that_failed(tmp_path, kind):
    verdict, _ = play(kind, tmp_path / "run", tmp_path / "journal.jsonl", size=SIZES[kind])
    assert verdict.wrong == []
    assert verdict.as_reward == 0
    assert len(lines(tmp_path / "journal.jsonl")) >= 2


def test_an_engine_that_breaks_in_mid_batch_costs_those_attempts_and_nothing_else(tmp_path):
    made = setting(tmp_path, "engine_raises", 0.5)
    verdict = engine_breaks(made)
    assert (verdict.wrong, verdict.as_reward) == ([], 0)
    assert len(made.injector.faults) > 10


class ZeroFilled(FaultyEnv):
    """Does what must not be done: its failure is an end like any other, and is scored."""

    async def step(self, action):
        step = await super().step(action)
        if self.turn == 1 and self.injector.draw(self.rollout) < 0.3:
            self.note("the machinery is lost", origin="infra")
            return replace(step, terminated=True)
        return step


def test_a_failure_that_is_filled_with_a_reward_is_caught(tmp_path):
    made = setting(tmp_path, "zero_filled", 0.25)
    verdict = asyncio.run(in_world(made, ZeroFilled))
    faults = len(made.injector.faults)
    assert faults > 5
    assert verdict.as_reward == faults
    assert sum("expected ('error', 'infra') after: the machinery is lost" in line for line in verdict.wrong) == faults


class Silent(FaultyEnv):
    """Fails without a word in the journal."""

    async def step(self, action):
        if self.injector.draw(self.rollout) < 0.2:
            raise RuntimeError("nobody knows")
        return await super().step(action)


def test_a_failure_that_nobody_injected_is_caught(tmp_path):
    verdict = asyncio.run(in_world(setting(tmp_path, "silent", 0.25), Silent))
    assert any("expected ('ok', '-') after: nothing" in line for line in verdict.wrong)


def test_a_kind_runs_in_a_process_of_its_own_and_is_counted(tmp_path):
    row = inject("grader_crashes", tmp_path, size=0.25)
    assert (row.hung, row.wrong_outcome, row.trained_as_reward, row.wrong) == (0, 0, 0, [])
    assert row.injected == row.survived == len(lines(tmp_path / "grader_crashes.jsonl")) > 0


def test_a_run_that_does_not_end_in_time_has_hung_and_survived_nothing(tmp_path):
    row = inject("reset_fails", tmp_path, deadline_s=0.05)
    assert (row.hung, row.survived) == (1, 0)


def test_a_process_that_dies_is_a_wrong_outcome(tmp_path):
    row = inject("no_such_kind", tmp_path)
    assert (row.hung, row.survived, row.wrong) == (0, 0, ["the run ended with exit status 2"])


def test_there_are_thirteen_kinds_and_each_is_found():
    sources = {kind: (ROOT / "bench" / f"{module}.py").read_text() for kind, module in KINDS.items()}
    assert len(sources) == 13
    assert [kind for kind, text in sources.items() if f"\ndef {kind}(setting: Setting) -> Verdict:" not in text] == []


def test_curves_are_told_apart_by_twice_the_error_of_their_difference():
    from bench.fault_curves import compare, noise, summary

    assert noise([0.0, 2.0], [1.0, 1.0]) == 2.0
    clean, close, low = [[0.25, 0.5], [0.25, 0.75]], [[0.25, 0.5], [0.0, 0.75]], [[0.0, 0.125], [0.0, 0.125]]
    runs = {"clean": clean, "masked": close, "zero_filled": low}
    found = compare(runs)
    assert found["clean"]["mean"] == 0.4375
    assert (found["masked"]["behind_clean"], found["masked"]["noise"], found["masked"]["noise_paired"]) == (
        0.0625, 0.125, 0.125
    )
    assert (found["zero_filled"]["behind_clean"], found["zero_filled"]["noise"]) == (0.375, 0.125)
    assert compare(runs, last=1)["zero_filled"]["behind_clean"] == 0.5
    assert summary(runs)["curves"] == {"clean": [0.25, 0.625], "masked": [0.125, 0.625], "zero_filled": [0.0, 0.125]}


@pytest.mark.parametrize("world", ["independent", "biased"])
def test_a_world_for_curves_fails_in_three_of_ten_attempts_and_zeros_are_filled_in_one_arm_only(world):
    from bench.fault_curves import WORLDS

    assert {arm: share for arm, (_, share, _) in WORLDS[world].items() if share == 0} == {"clean": 0.0}
    assert {share for _, share, _ in WORLDS[world].values()} == {0.0, 0.3}
    assert [arm for arm, (env, _, _) in WORLDS[world].items() if "Zero" in env.__name__] == ["zero_filled"]
