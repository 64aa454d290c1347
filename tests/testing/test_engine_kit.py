"""The conformance kit accepts the real engine and catches engines that break one promise."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from treadle.core.errors import PromptTooLong
from treadle.core.ports import Completion, Finish, Request
from treadle.core.seeds import Stream
from treadle.inference import EngineConfig, LocalEngine
from treadle.models import Policy, build_tiny
from treadle.testing import check_engine


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy.load(build_tiny(tmp_path, hidden=32))


def small(policy: Policy, kind: type[LocalEngine] = LocalEngine) -> LocalEngine:
    return kind(policy, EngineConfig(slots=6, context=96, max_batch_tokens=64, kv_budget_tokens=4096))


class NoisyEngine(LocalEngine):
    """Draws depend on how many requests came before."""

    calls = 0

    async def generate(self, request: Request) -> Completion:
        NoisyEngine.calls += 1
        return await super().generate(replace(request, stream=Stream(NoisyEngine.calls)))


class ShavingEngine(LocalEngine):
    """Leaves the stop token out."""

    async def generate(self, request: Request) -> Completion:
        done = await super().generate(request)
        if done.finish is not Finish.STOP:
            return done
        n = len(done.ids) - 1
        return replace(done, ids=done.ids[:n], logprobs=done.logprobs[:n], entropy=done.entropy[:n], versions=((0, n),))


class PermissiveEngine(LocalEngine):
    """Cuts prompts that are too long."""

    async def generate(self, request: Request) -> Completion:
        return await super().generate(replace(request, prompt=request.prompt[: self.context - 4]))


class StickyEngine(LocalEngine):
    """Goes on with a request that nobody waits for."""

    async def generate(self, request: Request) -> Completion:
        return await asyncio.shield(super().generate(request))


class StaleEngine(LocalEngine):
    """Trusts a cache hint more than the ids."""

    async def generate(self, request: Request) -> Completion:
        done = await super().generate(request)
        return done if request.cache is None else replace(done, logprobs=np.minimum(done.logprobs - 0.01, 0))


async def test_the_local_engine_holds_its_contract(policy: Policy) -> None:
    await check_engine(lambda: small(policy), vocab=259, context=96)
    assert policy.version == 0


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (NoisyEngine, "company changes nothing"),
        (ShavingEngine, "stop id is kept"),
        (PermissiveEngine, "a full context|PromptTooLong"),
        (StickyEngine, "nothing runs after a cancellation"),
        (StaleEngine, "a cache hint changes nothing"),
    ],
)
async def test_a_broken_promise_is_named(policy: Policy, kind: type[LocalEngine], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        await check_engine(lambda: small(policy, kind), vocab=259, context=96)


async def test_a_context_too_small_for_the_kit_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="at least 64"):
        await check_engine(lambda: small(policy), vocab=259, context=32)


def test_prompt_too_long_is_a_named_error() -> None:
    assert issubclass(PromptTooLong, Exception)
