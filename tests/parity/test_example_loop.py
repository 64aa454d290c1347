"""The library and `examples/loop.py` are the same algorithm: equal advantages, loss, gradient and step."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.losses import PpoClip
from treadle.algorithms.rules import RULES
from treadle.core.outcome import OK, Origin, failure
from treadle.core.ports import Completion, Finish
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.learner.config import LearnerConfig
from treadle.learner.learner import Learner
from treadle.learner.pack import PackedBatch, pack
from treadle.models.policy import Policy
from treadle.models.tiny import build_tiny
from treadle.trajectory.forest import Forest
from treadle.trajectory.group import Group, GroupKey

EXAMPLE = Path(__file__).parents[2] / "examples" / "loop.py"
LR = 1e-3


@pytest.fixture(scope="module")
def loop() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("example_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_loop"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["example_loop"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def learner(folder: Path) -> Learner:
    return Learner(Policy.load(folder), LearnerConfig(lr=LR, tokens_per_pack=150))


class CountingWorld:
    """Stands in for the shell: answers at once, pays by what was written, breaks on demand."""

    def __init__(self, *, breaks: bool = False, pays: float | None = None) -> None:
        self.breaks, self.pays, self.written = breaks, pays, b""

    async def start(self) -> bytes:
        return b"Write.\n"

    async def step(self, text: bytes) -> bytes:
        self.written += text
        if self.breaks:
            raise RuntimeError("the sandbox is gone")
        return b"%d\n" % len(text)

    async def score(self, most: int) -> float:
        return sum(self.written) / (255 * most) if self.pays is None else self.pays

    async def close(self) -> None:
        return None


@pytest.fixture
async def played(loop: ModuleType, model: Any) -> list[list[Any]]:
    """Three groups: one plain, one with a lost rollout, one in which all earned the same."""
    worlds = [
        [CountingWorld() for _ in range(5)],
        [CountingWorld(), CountingWorld(breaks=True), CountingWorld(), CountingWorld()],
        [CountingWorld(pays=1.0) for _ in range(3)],
    ]
    generator = torch.Generator().manual_seed(3)
    groups = [await loop.play_group(model, each, turns=3, tokens=6, generator=generator) for each in worlds]
    noise = np.random.default_rng(0)
    for rollout in (rollout for group in groups for rollout in group):
        off = noise.normal(0, 0.6, len(rollout.ids))  # as if an older policy had sampled: both clips bite
        rollout.logprobs = np.where(rollout.sampled, rollout.logprobs + off, 0.0).tolist()
    return groups


def as_group(rollouts: list[Any], number: int) -> Group:
    """The example's flat rollouts, told to the library."""
    group = Group(GroupKey(id=f"g{number}", ticket=number, task="t", family="", split="train", admitted_version=0))
    for index, rollout in enumerate(rollouts):
        held = group.begin(index).id
        runs = np.split(np.arange(len(rollout.ids)), np.flatnonzero(np.diff(rollout.sampled)) + 1)
        last = group.prompt(np.array(rollout.ids, dtype=np.int32)[runs[0]])
        for turn, run in enumerate(runs[1:]):
            ids = np.array(rollout.ids, dtype=np.int32)[run]
            if not rollout.sampled[run[0]]:
                last = group.observed(held, ids, after=last, turn=turn // 2)
                continue
            completion = Completion(
                ids=ids, logprobs=np.array(rollout.logprobs, dtype=np.float32)[run], kv_version=0,
                entropy=np.zeros(len(ids), dtype=np.float32), versions=((0, len(ids)),), finish=Finish.STOP,
            )
            last = group.sampled(held, completion, after=last, turn=turn // 2)
        if rollout.reward is None:
            group.end(held, failure(Origin.INFRA, RuntimeError("lost")))
        else:
            group.pay(held, "world", rollout.reward)
            group.end(held, OK)
    return group


def as_forest(played: list[list[Any]]) -> Forest:
    groups = [as_group(rollouts, number) for number, rollouts in enumerate(played)]
    return Forest.of([group for group in groups if len({rollout.reward for rollout in group.valid}) > 1])


def as_packs(played: list[list[Any]]) -> list[PackedBatch]:
    forest = as_forest(played)
    collapsed, denominator = assign(forest, RULES["grpo"](), TokenMean())
    return pack(forest, collapsed, denominator=denominator, budget_tokens=150)


def gradients(module: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for _, p in sorted(module.named_parameters())])


def weights(module: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for _, p in sorted(module.named_parameters())])


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def test_advantages_are_equal(loop: ModuleType, played: list[list[Any]]):
    expected = [advantage for _, advantage in loop.assign(played)]
    assert len(expected) == 8
    np.testing.assert_allclose(RULES["grpo"]()(as_forest(played)).advantage, expected, rtol=1e-9)


def test_loss_and_gradient_are_equal(loop: ModuleType, model: Any, learner: Learner, played: list[list[Any]]):
    expected = loop.backward(model, loop.assign(played))
    packs = as_packs(played)
    reports = [learner.accumulate(batch, PpoClip()) for batch in packs]
    assert len(packs) > 1
    assert sum(report["clip_share"] for _, report in reports) > 0
    assert sum(report["dual_clip_share"] for _, report in reports) > 0
    assert sum(loss for loss, _ in reports) == pytest.approx(expected, rel=1e-5)
    assert relative(gradients(learner.policy.module), gradients(model)) < 1e-5


def test_the_step_is_equal(loop: ModuleType, model: Any, learner: Learner, played: list[list[Any]]):
    before = weights(model)
    loop.update(model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0), loop.assign(played))
    learner.update(as_packs(played), PpoClip())
    assert relative(weights(learner.policy.module) - before, weights(model) - before) < 1e-3


def test_a_lost_rollout_has_no_reward_and_its_siblings_do(played: list[list[Any]]):
    assert [rollout.reward is None for rollout in played[1]] == [False, True, False, False]


def test_the_example_runs_in_a_real_sandbox(loop: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert BubblewrapSandbox.available() is None
    assert loop.main(["--updates", "1"]) == 0
    assert "update 0: reward" in capsys.readouterr().out


def test_the_example_is_one_short_file_that_needs_only_worlds():
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    imported = re.findall(r"^\s*(?:from|import)\s+(treadle\S*)", text, flags=re.MULTILINE)
    assert imported
    assert all(name.startswith("treadle.envs.") for name in imported)
