"""A step that raises takes down the requests in it and nobody else: those that wait are served by the next one."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.core.errors import EngineError


async def test_requests_that_wait_while_a_batch_fails_are_served(lab: Any) -> None:
    plain = lab.policy.hidden

    def fail(*args: Any) -> Any:
        lab.policy.hidden = plain
        raise RuntimeError("no memory")

    async with lab.engine(slots=2, max_batch_tokens=64) as engine:
        with lab.policy.gate.write("test"):  # the first step waits here, so that all three are known to it
            asked = [
                asyncio.ensure_future(engine.generate(lab.ask(lab.ids(20, seed), f"r{seed}"))) for seed in range(3)
            ]
            await lab.turn(3)
            lab.policy.hidden = fail
        answers = await lab.soon(asyncio.gather(*asked, return_exceptions=True))
        assert [str(answer) for answer in answers[:2]] == ["engine step failed: RuntimeError: no memory"] * 2
        assert {type(answer) for answer in answers[:2]} == {EngineError}
        alone = await lab.soon(engine.generate(lab.ask(lab.ids(20, 2), "r2")))
        assert answers[2].ids.tolist() == alone.ids.tolist()
        assert lab.counts(engine, "failed", "finished") == (2, 2)
        assert engine.load_signal().kv_tokens == 0
