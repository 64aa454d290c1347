"""The world that both sides of `closed_loop` play in, and what they are asked to do: plain Python, no library.

A room answers every turn but the last. What a turn says is the argument of the one call that it stands for; the tool
looks at nothing of it, may take its time, and answers the same text. The reward is a number in [0, 1) that is drawn
from the last turn's text: members of a group differ in it, so that every rollout has an advantage and trains.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ANSWER = "You are in a small room with a lamp, a table and a closed door. Nothing has moved. What do you do next?"
"""What the tool says."""
WARM_TOKENS = 4
"""Tokens a turn of the warm-up update, which counts nowhere."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How rollouts go."""

    name: str
    turns: int
    tool_s: float = 0.0
    """Seconds that a call of the tool takes."""

    @property
    def calls(self) -> int:
        """Calls of a rollout: the last turn ends it."""
        return self.turns - 1


SCENARIOS = (
    Scenario(name="single_turn", turns=1),
    Scenario(name="three_turn", turns=3),
    Scenario(name="three_turn_tool_300ms", turns=3, tool_s=0.3),
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is equal for both sides and all scenarios."""

    folder: str
    """The checkpoint, in Hugging Face format."""
    prompts: Sequence[str]
    """What the user says, a task each; every update takes the next `groups` of them."""
    groups: int
    size: int
    """Rollouts of a group."""
    tokens: int
    """Tokens of a turn: so many are sampled, whatever they are."""
    lr: float

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Work:
        """What `asdict` made, perhaps with more in it."""
        return cls(**{name: facts[name] for name in cls.__dataclass_fields__})

    def facts(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @property
    def rows(self) -> int:
        """Rollouts of an update."""
        return self.groups * self.size

    def trained(self, scenario: Scenario) -> int:
        """Tokens that an update trains."""
        return self.rows * scenario.turns * self.tokens


def answered(tool_s: float) -> str:
    """The tool, on both sides."""
    if tool_s:
        time.sleep(tool_s)
    return ANSWER


def worth(text: str) -> float:
    """The reward of a rollout that ended with this turn."""
    return zlib.crc32(text.encode("utf-8", "replace")) / 2**32


def digests(prompts: Sequence[Sequence[int]]) -> list[int]:
    """What prompts are compared by, order aside."""
    return sorted(zlib.crc32(",".join(map(str, ids)).encode()) for ids in prompts)
