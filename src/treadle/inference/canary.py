"""Asks an engine what the canary's publisher was asked, and compares.

It goes the way of every request, through the port and with an empty cache, so that it holds for any engine, whatever
computes behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from treadle.core.errors import WeightMismatch
from treadle.core.ports import Completion, Request, Sampling
from treadle.core.seeds import Stream
from treadle.models.canary import ENTROPY, Canary, CanaryPoint

FIRST = -(1 << 30)
"""Before every other request."""
Ask = Callable[[Request], Awaitable[Completion]]


async def check_canary(ask: Ask, canary: Canary, *, version: int, context: int) -> None:
    """Raises WeightMismatch with both numbers at the first question that is answered otherwise.

    Prompts that do not fit into `context` tokens are left out. The caller sets the deadline.
    """
    points = [point for point in canary.points if len(point.prompt) < context]
    answers = await asyncio.gather(*(ask(_request(point)) for point in points))
    for number, (point, answer) in enumerate(zip(points, answers, strict=True), 1):
        where = f"weights of policy version {version}: canary {number} of {len(points)}"
        if answer.versions != ((version, 1),) or answer.kv_version != version:
            raise WeightMismatch(f"{where} was answered by policy version {answer.oldest_version}")
        for what, ours, theirs, most in (
            ("log-prob", float(answer.logprobs[0]), point.logprob, canary.tolerance),
            ("entropy", float(answer.entropy[0]), point.entropy, ENTROPY * canary.tolerance),
        ):
            if not abs(ours - theirs) <= most:
                raise WeightMismatch(
                    f"{where}: {what} {ours:.6f} in the engine, {theirs:.6f} at the publisher, which may differ by "
                    f"{most:g}"
                )


def _request(point: CanaryPoint) -> Request:
    return Request(
        prompt=np.asarray(point.prompt, dtype=np.int32), sampling=Sampling(temperature=0.0, max_tokens=1),
        stream=Stream(0).at("canary"), priority=FIRST,
    )
