"""How large an engine is."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.core.errors import ConfigError

SMALLEST_ROW = 64
"""Tokens of the smallest KV row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes and deadlines of an engine. Raises ConfigError for values that contradict each other."""

    slots: int = 64
    """Most requests that decode at the same time."""
    max_batch_tokens: int = 2048
    """Most tokens of one forward: one for each decoding request, the rest prefill."""
    context: int = 2048
    """Most tokens of one sequence, prompt and completion; the model's own limit caps it."""
    kv_budget_tokens: int = 65536
    """KV entries that fit. Memory is touched only as they are used; see `LocalEngine.kv_bytes_per_token`."""
    copies: bool = False
    """Run in a process of its own, on a copy of the weights that is checked after every update."""
    deterministic: bool = False
    """To the last bit, a token depends on the weights, its own context and its stream alone: not on what else is asked
    for, nor on when. New weights compute all KV anew. Slower; runs can be replayed from their record."""
    rows: int = 32
    """Tokens of every forward in deterministic mode: what is missing is padded, what is more waits."""
    stall_s: float = 300.0
    """A request fails when the engine has finished no step for this long while it waited."""

    def __post_init__(self) -> None:
        for name in ("slots", "max_batch_tokens", "context", "kv_budget_tokens", "rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name}: got {getattr(self, name)}, expected at least 1")
        if not self.stall_s > 0:
            raise ConfigError(f"engine.stall_s: got {self.stall_s}, expected more than 0")
        if self.copies and self.deterministic:
            raise ConfigError(
                "engine.copies=true contradicts engine.deterministic=true: a copying engine has no deterministic mode; "
                "set one of them to false"
            )
        if self.max_batch_tokens < self.slots and not self.deterministic:
            raise ConfigError(
                f"engine.max_batch_tokens: got {self.max_batch_tokens}, expected at least engine.slots ({self.slots})"
            )
        if self.kv_budget_tokens < 4 * self.block_tokens:
            raise ConfigError(
                f"engine.kv_budget_tokens: got {self.kv_budget_tokens}, expected at least {4 * self.block_tokens} "
                f"for engine.context {self.context}"
            )

    @property
    def step_tokens(self) -> int:
        """Most tokens of one forward in the mode that is set."""
        return self.rows if self.deterministic else self.max_batch_tokens

    @property
    def block_tokens(self) -> int:
        """Size of the blocks that the arena is made of: one row of the largest class fits."""
        return max(1024, row_capacity(self.context))


def row_capacity(tokens: int) -> int:
    """Smallest row class that holds `tokens`: a power of two, at least `SMALLEST_ROW`."""
    return max(SMALLEST_ROW, 1 << (max(tokens, 1) - 1).bit_length())
