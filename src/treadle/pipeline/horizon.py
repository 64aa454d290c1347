"""The horizon schedule: how many turns a rollout may take, growing while the run goes on.

A policy that is new to a world wastes late turns: it has lost its way early and pays for every token after that. So the
first updates play short rollouts, and the limit grows in equal steps from `first` to `limits.max_turns` over the first
`updates` updates, as in the stages of 2509.08755.

It is a function of the ticket alone: tickets are counted in updates of `groups_per_update`, whatever was dropped, so
that a ticket has the same horizon whenever it is played, also after an interruption. All rollouts of a group share it.
A rollout that gets there ends as (truncated, limit), which the policy caused: it is scored as the world stands and it
trains. Its bias: while the horizon is short, tasks that need more turns are taught as if they could not be solved.
Evaluations always play with the whole limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Raises ConfigError naming the key."""

    first: int = 1
    """Most turns of a rollout in the first update."""
    updates: int = 20
    """Updates until `limits.max_turns` holds."""

    def __post_init__(self) -> None:
        for key in ("first", "updates"):
            if getattr(self, key) < 1:
                raise ConfigError(f"horizon.{key}: got {getattr(self, key)}, expected >= 1")

    def require(self, limits: RolloutLimits) -> None:
        """Raise ConfigError unless the horizon can grow to the limit."""
        last = limits.max_turns
        if last is None or last < self.first:
            given = "none" if last is None else last
            raise ConfigError(
                f"pipeline.horizon.first={self.first} contradicts limits.max_turns={given}: turns grow from the one to "
                "the other, expected limits.max_turns to be set and not to be smaller"
            )

    def turns(self, update: int, *, last: int) -> int:
        """Most turns in an update, counted from 0: each of first .. last - 1 for equally many updates, then `last`."""
        done = min(update, self.updates)
        return self.first + done * (last - self.first) // self.updates
