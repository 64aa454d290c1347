"""An engine gives way where the process's memory runs short: idle KV goes, answers stay right."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.core.memory import Memory
from treadle.core.ports import CacheHint
from treadle.inference import EngineConfig, LocalEngine


class Pressed:
    """A process that holds too much until the engine gave so many bytes back."""

    def __init__(self) -> None:
        self.resident = 0
        self.told: list[dict[str, Any]] = []
        self.memory = Memory(1000, resident=lambda: self.resident)
        self.memory.tell = self.tell

    def tell(self, facts: Any) -> None:
        self.told.append(dict(facts))
        self.resident = 0


async def test_idle_kv_goes_back_to_the_system_and_is_computed_again(lab: Any) -> None:
    pressed = Pressed()
    config = EngineConfig(slots=8, context=256, max_batch_tokens=64, kv_budget_tokens=8192)
    request = lab.ask(lab.ids(100), "a", cache=CacheHint(rollout="a"))
    async with LocalEngine(lab.policy, config, memory=pressed.memory) as engine:
        (done,) = await lab.all(engine, request)
        assert lab.counts(engine, "evicted", "kv_tokens") == (0, 107)
        pressed.resident = 2000
        other = lab.ask(lab.ids(10, 1), "b")
        await lab.all(engine, other)
        assert lab.counts(engine, "evicted") == (1,)
        longer = lab.ask(np.concatenate([request.prompt, done.ids]), "c", cache=CacheHint(rollout="a"))
        (again,) = await lab.all(engine, longer)
    assert lab.error(longer, again) < 1e-4
    (told,) = pressed.told
    assert (told["who"], told["evicted"]) == ("engine", 1)
    assert told["freed_gb"] > 0


async def test_an_engine_that_takes_no_steps_gives_way_when_it_is_called(lab: Any) -> None:
    pressed = Pressed()
    config = EngineConfig(slots=8, context=256, max_batch_tokens=64, kv_budget_tokens=8192)
    async with LocalEngine(lab.policy, config, memory=pressed.memory) as engine:
        await lab.all(engine, lab.ask(lab.ids(100), "a", cache=CacheHint(rollout="a")))
        pressed.resident = 2000
        pressed.memory.call_helpers()
        pressed.resident = 2000
        while not lab.counts(engine, "evicted")[0]:
            await lab.turn()
        assert lab.counts(engine, "kv_tokens") == (0,)
