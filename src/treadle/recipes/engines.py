"""Which engine a run has: one on the learner's own tensors, or one with a copy, which has to be loaded first."""

from __future__ import annotations

from treadle.core.memory import Memory
from treadle.core.ports import Clock
from treadle.inference.config import EngineConfig
from treadle.inference.copied import CopiedEngine, Restarted, unheard
from treadle.inference.engine import LocalEngine
from treadle.inference.flight import Decode
from treadle.inference.port import Engine
from treadle.inference.process import Patience
from treadle.learner.publisher import Publisher
from treadle.models.policy import Policy
from treadle.pipeline.trainer import BlockingThread

PUBLISH_S = 600.0
"""Deadline of the first publish."""


def make_engine(
    config: EngineConfig, policy: Policy, *, clock: Clock, decode: Decode, restarts: int = 0,
    restarted: Restarted = unheard, memory: Memory | None = None, own_memory: int | None = None,
) -> LocalEngine | CopiedEngine:
    """The engine that `config` asks for, not started.

    One with a process of its own has it started again so often when it ends before its time, and tells `restarted`; its
    budget of memory is `own_memory` bytes. Any other shares the `memory` of this process.
    """
    if config.copies:
        engine = CopiedEngine(
            policy.folder, config, dtype=str(policy.weight_dtype).removeprefix("torch."),
            compute_dtype=policy.compute_dtype,
            patience=Patience(restarts=restarts), memory=own_memory,
        )
        engine.restarted = restarted
        return engine
    return LocalEngine(policy, config, clock=clock, decode=decode, memory=memory)


async def first_load(engine: Engine, publisher: Publisher, policy: Policy, *, thread: BlockingThread) -> None:
    """Give an engine that copies the weights that the run starts from: it serves nothing before."""
    ref = await thread.call("the first publish", lambda: publisher.publish(policy), deadline_s=PUBLISH_S)
    await engine.load(ref)
