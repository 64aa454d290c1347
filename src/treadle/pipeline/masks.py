"""Filters that leave out single rollouts: those over a limit, those with an empty turn, those that say the same again,
those through states of unknown worth.

All of them are off unless a recipe names them, because each changes what is learned: a rollout that is left out is
neither rewarded nor punished, and its siblings' baseline is the mean without it. Rewards decide nothing here. A group
of which too little is left is dropped under the filter's name; `min_valid` counts failures, not what is left out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from treadle.agents.limits import Rewards
from treadle.core.config import did_you_mean
from treadle.core.errors import ConfigError
from treadle.core.outcome import Origin, Status
from treadle.pipeline.filters import DropEqualRewards, Filter, FilterPlan
from treadle.trajectory.group import Group, Rollout
from treadle.trajectory.segment import Segment

LIMITS = ("turns", "tokens", "context", "env", "budget")
"""Limits that end a rollout: its turns, the tokens of one turn, its context, the environment's own, its part of
`branching.tokens_per_group`."""
PARTS = ("text", "code", "call")
"""Parts of a turn that may be an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """What these filters have in common."""

    reason: ClassVar[str]
    least: int
    """Rollouts that must be left: what the credit rule needs."""

    def masks(self, group: Group) -> Mapping[str, str]:
        """Valid rollouts that `leaves_out` picks."""
        return {rollout.id: self.reason for rollout in group.valid if self.leaves_out(group, rollout)}

    def leaves_out(self, group: Group, rollout: Rollout) -> bool:
        """Whether the rollout does not train; the filters say."""
        raise NotImplementedError

    def __call__(self, group: Group) -> str | None:
        """The reason when too few are left."""
        return self.reason if len(group.valid) < self.least else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong(Masking):
    """Leaves out rollouts that a limit ended: what they would have come to is not known (2503.14476).

    Its bias: going on for ever is no longer punished. The world scored what stood when the limit came, mostly 0, and
    the policy does not hear of it; so lengths may grow until most groups are dropped here. The paper leaves such
    rollouts in their siblings' baseline, here they are in neither.
    """

    reason: ClassVar[str] = "overlong"
    limits: tuple[str, ...] = LIMITS
    """Which of `LIMITS`."""

    def leaves_out(self, group: Group, rollout: Rollout) -> bool:
        """Whether one of these limits ended it."""
        end = rollout.outcome
        return (
            end is not None and (end.status, end.origin) == (Status.TRUNCATED, Origin.LIMIT) and end.type in self.limits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidTurns(Masking):
    """Leaves out rollouts with a turn that gave the world nothing to act on (2509.02479).

    A turn is void when none of its parts is an action, or when its token limit cut it off, because that is not run. The
    last turn of a rollout that the world ended is its answer, whatever its parts. A call that cannot be read is
    answered, so it is no void turn. A turn that a full context cut off is judged by its parts alone: it cannot be told
    from one that was run and whose answer did not fit.

    Its bias: void turns are no longer punished, only not learned from, so a habit of them that pays stays.
    """

    reason: ClassVar[str] = "void_turn"
    parts: tuple[str, ...] = ("code", "call")
    """Which of `PARTS` are actions."""

    def leaves_out(self, group: Group, rollout: Rollout) -> bool:
        """Whether any of its turns is void."""
        assert rollout.outcome is not None
        turns = group.actions(rollout.id)
        answered = turns[:-1] if rollout.outcome.status is Status.OK else turns
        return rollout.outcome.type == "tokens" or not all(map(self._acts, answered))

    def _acts(self, turn: Segment) -> bool:
        return any(span.kind in self.parts for span in turn.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates(Masking):
    """Leaves out all but the first `keep` rollouts of a group that sampled exactly the same tokens.

    Its bias: the baseline is then a mean over different rollouts, not over what the policy does. A rollout that the
    policy gives often weighs no more than one that it gives once, so common ones are pushed up and down too little and
    rare ones too much. It saves no time, because equal rollouts are computed once anyway.
    """

    reason: ClassVar[str] = "duplicate"
    keep: int = 1

    def masks(self, group: Group) -> Mapping[str, str]:
        """Those after the first ones, by their places in the group."""
        seen: dict[tuple[bytes, ...], int] = {}
        out: dict[str, str] = {}
        for rollout in group.valid:
            said = tuple(turn.ids.tobytes() for turn in group.actions(rollout.id))
            seen[said] = seen.get(said, 0) + 1
            if seen[said] > self.keep:
                out[rollout.id] = self.reason
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprobed(Masking):
    """Leaves out rollouts that acted in a state which no probe says the worth of.

    For rules that need one of each state (`vine`), so that a lost probe costs rollouts and not the run. Its bias is
    that of whatever loses probes: failures of the machinery have none; a small `branching.turns` or budget leaves out
    long rollouts.
    """

    reason: ClassVar[str] = "unprobed"

    def masks(self, group: Group) -> Mapping[str, str]:
        """Those with an action that was taken in such a state."""
        probed = group.probed
        return {
            rollout.id: self.reason for rollout in group.valid
            if any(action.after not in probed for action in group.actions(rollout.id))
        }


# -- what a recipe says ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskOverlong:
    """Rollouts that a limit ended do not train. Raises ConfigError naming the key."""

    name: ClassVar[str] = Overlong.reason
    masking: ClassVar[bool] = True

    limits: tuple[str, ...] = LIMITS
    """Of `turns`, `tokens` (of one turn), `context`, `env` (the environment's own) and `budget` (its part of
    `branching.tokens_per_group`). Where `pipeline.horizon` cuts rollouts off on purpose, `turns` does not belong here,
    and where `branching.reserve_tokens` does, `budget` does not."""

    def __post_init__(self) -> None:
        _check("overlong.limits", self.limits, LIMITS)

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """Whatever the rewards are."""
        return Overlong(least=max(1, min_rollouts), limits=self.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskVoidTurns:
    """Rollouts with a turn that is no action do not train. Raises ConfigError naming the key."""

    name: ClassVar[str] = VoidTurns.reason
    masking: ClassVar[bool] = True

    parts: tuple[str, ...] = ("code", "call")
    """Parts of a turn that are actions: `code`, `call`, and `text` where the world reads plain text."""

    def __post_init__(self) -> None:
        _check("void_turn.parts", self.parts, PARTS)

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """Whatever the rewards are."""
        return VoidTurns(least=max(1, min_rollouts), parts=self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskDuplicates:
    """Of rollouts that sampled the same tokens only the first train. Raises ConfigError naming the key."""

    name: ClassVar[str] = Duplicates.reason
    masking: ClassVar[bool] = True

    keep: int = 1
    """How many of them train."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(f"duplicate.keep: got {self.keep}, expected >= 1")

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """Whatever the rewards are."""
        return Duplicates(least=max(1, min_rollouts), keep=self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskUnprobed:
    """Rollouts through states that no probe says the worth of do not train."""

    name: ClassVar[str] = Unprobed.reason
    masking: ClassVar[bool] = True

    def begin(self, *, rewards: Rewards, min_rollouts: int) -> Filter | None:
        """Whatever the rewards are."""
        return Unprobed(least=max(1, min_rollouts))


FILTERS: Mapping[str, type[FilterPlan]] = {
    kind.name: kind for kind in (DropEqualRewards, MaskOverlong, MaskVoidTurns, MaskDuplicates, MaskUnprobed)
}


def _check(key: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise ConfigError unless all that is given is known, and something is."""
    wrong = [one for one in given if one not in known]
    if wrong or not given:
        said = f"unknown name {wrong[0]!r}{did_you_mean(wrong[0], known)}" if wrong else "got none, expected some"
        raise ConfigError(f"{key}: {said} (names: {', '.join(known)})")
