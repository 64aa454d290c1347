"""What one rollout may cost, and which of its reward parts count.

Limits are the rollout's own: reaching one is an ending (truncated, limit) that is scored and trains, not a failure.
The one deadline that is a failure is `generate_s`: an engine that does not answer is the machinery's fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.errors import ConfigError
from treadle.core.messages import Message
from treadle.trajectory.group import Rollout

CHARS_PER_TOKEN = 512
"""No vocabulary has a longer token."""
STEP = "step"
"""The part of a reward that steps pay; all others are parts of the score."""


def chars_beyond(max_context: int, messages: Sequence[Message]) -> int:
    """Characters of messages that cannot fit into so many tokens, whatever the tokeniser says; 0 when they may fit.

    Asked before text of the world is tokenised: with a hundred megabytes that takes minutes.
    """
    chars = sum(len(message.content or "") for message in messages)
    return chars if chars > max_context * CHARS_PER_TOKEN else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Raises ConfigError naming the key when a number makes no sense."""

    max_turns: int | None = None
    """Most actions of a rollout; None takes what the environment states. The smaller of the two holds."""
    max_tokens_per_turn: int = 256
    """Most sampled tokens of one action. An action that is cut off is not run: the rollout ends, `tokens`."""
    max_context: int = 2048
    """Most tokens of prompt, actions and observations together; a rollout that fills it ends, `context`."""
    temperature: float = 1.0
    stop_strings: tuple[str, ...] = ()
    """An action also ends with the first token that completes one of these."""
    generate_s: float = 600.0
    """Seconds to wait for one completion before the rollout ends (error, infra)."""

    def __post_init__(self) -> None:
        checks = {
            "max_turns": (self.max_turns is None or self.max_turns >= 1, ">= 1 or none"),
            "max_tokens_per_turn": (self.max_tokens_per_turn >= 1, ">= 1"),
            "max_context": (self.max_context >= 2, ">= 2"),
            "temperature": (self.temperature >= 0, ">= 0"),
            "generate_s": (self.generate_s > 0, "> 0 seconds"),
        }
        for name, (good, expected) in checks.items():
            if not good:
                raise ConfigError(f"limits.{name}: got {getattr(self, name)}, expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """How the parts of a score become one reward."""

    main: str = ""
    """The part that filters and evaluation read (the *raw reward*); empty takes the sum of the parts that train."""
    train: tuple[str, ...] | None = None
    """Parts that are summed into the reward; None means all of them. The others are only reported."""
    bar: float = 1.0
    """A rollout is solved when its raw reward reaches this."""

    def trains(self, part: str) -> bool:
        """Whether this part is summed into the reward."""
        return self.train is None or part in self.train

    def raw(self, rollout: Rollout) -> float | None:
        """The raw reward of a rollout; None when it was not scored or its score lacks the main part."""
        if rollout.reward is None or not self.main:
            return rollout.reward
        return rollout.rewards.get(self.main)

    def solved(self, rollout: Rollout) -> bool:
        """Whether the raw reward reaches the bar."""
        raw = self.raw(rollout)
        return raw is not None and raw >= self.bar - 1e-9
