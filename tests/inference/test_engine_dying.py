"""What kills a step, or the engine's thread, reaches those who wait, with its name."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.errors import EngineError
from treadle.inference import engine as module


class Panic(BaseException):
    """What native code raises when it panics: no Exception."""


async def test_a_panic_in_a_forward_fails_its_requests_and_the_engine_goes_on(lab: Any) -> None:
    plain = lab.policy.hidden

    def fail(*args: Any) -> Any:
        lab.policy.hidden = plain
        raise Panic("native code")

    async with lab.engine() as engine:
        lab.policy.hidden = fail
        with pytest.raises(EngineError, match="engine step failed: Panic: native code"):
            await lab.soon(engine.generate(lab.ask(lab.ids(20))))
        assert len((await lab.soon(engine.generate(lab.ask(lab.ids(20))))).ids) == 8


async def test_a_thread_that_ended_before_its_time_says_why(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(flight: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, "LOOK_UP_S", 0.05)
    async with lab.engine() as engine:
        monkeypatch.setattr(engine._worker, "submit", fail)
        for _ in range(2):  # the one that was lost with it, and one that comes later
            with pytest.raises(EngineError, match="the engine's thread ended with RuntimeError: a bug"):
                await lab.soon(engine.generate(lab.ask(lab.ids(20))))
