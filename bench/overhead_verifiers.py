"""The verifiers side of `bench rollout_overhead`: the same talk in one process, around a client that answers at once.

    MultiTurnEnv.run_group for all groups at once   the rollouts and their scoring alone
    MultiTurnEnv.generate                           what its users call: with the table of results

Messages are text: nothing is tokenised or written to a disk. The client makes verifiers' own response object and no
more, so that no HTTP library's types are in the time. This runs in a virtual environment of its own and uses the
standard library and verifiers alone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Any

import verifiers as vf
from datasets import Dataset, disable_progress_bars
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage

from bench.closed_wire import Facts, Wire

SAID = "list the files of folder {} and count them"


class Scripted(Client[None, Any, str, Any]):
    """Says something else every turn, at once."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked = self.inside = self.most = 0

    def setup_client(self, config: Any) -> None:
        """There is nothing to connect to."""

    async def to_native_tool(self, tool: Any) -> Any:
        """As it is."""
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """As they are."""
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **keywords: Any
    ) -> str:
        """The next words, after one turn of the event loop."""
        self.asked += 1
        said = SAID.format(self.asked)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        return said

    async def raise_from_native_response(self, response: str) -> None:
        """It is always valid."""

    async def from_native_response(self, response: str) -> Response:
        """The words as verifiers' own."""
        message = ResponseMessage(content=response, finish_reason="stop", is_truncated=False)
        return Response(id="0", created=0, model="scripted", message=message)

    async def close(self) -> None:
        """There is nothing to close."""


class Echo(vf.MultiTurnEnv):
    """Says back what it hears."""

    async def env_response(self, messages: Any, state: Any, **keywords: Any) -> Any:
        """One message."""
        return [{"role": "user", "content": f"you said {messages[-1].content}"}]


async def correct(completion: Any, answer: str) -> float:
    """1 when the word was said."""
    return float(any(message.content == answer for message in completion if message.role == "assistant"))


def measured(arm: str, groups: int, size: int, turns: int) -> Facts:
    """Turns per second, and the most rollouts that waited for an answer at the same time."""
    words = [SAID.format(number) for number in range(groups)]
    rows = [{"question": f"say {word}", "answer": word} for word in words]
    env = Echo(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[correct]), max_turns=turns)
    inputs = env.get_dataset().to_list()
    client = Scripted()

    async def run_group() -> None:
        play = (env.run_group([row] * size, client, "scripted", {}) for row in inputs)
        await asyncio.gather(*play)

    async def generate() -> None:
        told = [row for row in inputs for _ in range(size)]
        await env.generate(told, client, "scripted", on_start=_hears, on_progress=_hears)

    gc.collect()
    gc.freeze()
    begun = time.perf_counter()
    asyncio.run({"run_group": run_group, "generate": generate}[arm]())
    seconds = time.perf_counter() - begun
    gc.unfreeze()
    if client.asked != groups * size * turns:
        raise ValueError(f"{client.asked} turns were played, expected {groups * size * turns}")
    return {"turns_per_s": client.asked / seconds, "in_flight": client.most}


def _hears(*_: object) -> None:
    """Show no progress."""


def main() -> None:
    """Answer questions until there are no more."""
    logging.disable(logging.CRITICAL)
    disable_progress_bars()
    wire = Wire()
    while (question := wire.hear())["do"] != "quit":
        try:
            asked = {key: question[key] for key in ("arm", "groups", "size", "turns")}
            wire.say(**measured(**asked))
        except Exception as error:  # the border of the process: whatever a peer raises is its answer
            wire.say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
