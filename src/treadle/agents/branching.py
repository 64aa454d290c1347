"""Branching: where the rollouts of a group fork, and what that may cost.

    Branching   what a recipe says, by name              frozen numbers
    Brancher    made of it once for all groups           may learn from one group for later ones
    GroupPlan   of one group, made before it begins      asked at every state: how many go on from here?

A group begins with `pipeline.group_size` chains, each from its own reset. Whenever the world has answered, and before
the policy acts on it, the plan is asked for a `Split`: how many children the state gets, the rollout that got there
included, and how many probes. So the fan-out is decided before any child is sampled. A policy that decides otherwise
says so: `fanout_before_children` is False.

Tokens. A group may have a budget, which counts everything that is sampled: rollouts, failed attempts, probes, looks.
It is cut into equal parts, one for each chain, and a fork divides what is left of its branch's part among the children.
So what a branch may do depends on its own past alone: not on who was faster, and not on how long its siblings became,
which would let a child of one branch decide about the fan-out of another. What a branch does not use is not used. A
fork begins only when every child can pay for the most that it could sample, or for `reserve_tokens` where that is
stated; a rollout whose part is used up ends (truncated, limit), type `budget`.

Places. Every chain owns a range of places in the group, and a fork divides it in the same way. So the place of a child,
from which its random streams are named, follows from where it stands in the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from treadle.agents.limits import RolloutLimits
from treadle.core.errors import ConfigError
from treadle.core.events import Value
from treadle.core.ports import Ids
from treadle.core.seeds import Stream
from treadle.envs.forking import Rng
from treadle.envs.snapshots import Snapshot
from treadle.trajectory.segment import Segment

Look = Callable[[int], Awaitable[float]]
"""Sample so many tokens in this state and throw them away: the mean entropy that they were drawn from, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a rollout is about to act, as its player knows it."""

    rollout: str
    turn: int
    """Number of the action to come; 0 at the prompt."""
    turns_left: int
    """Most actions from here on."""
    context: int
    """Tokens of the context."""
    behind: str
    """Id of the action that the world has just answered; of the prompt at turn 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a rollout is about to act, and where that is in its tree."""

    state: State
    chain: int
    """Place of the chain that it descends from."""
    trunk: bool
    """Whether the rollout is the chain itself, and no fork of it."""
    depth: int
    """Forks between the chain's start and this state."""
    tokens_left: int | None
    """Of the branch's part of the budget; None where there is no budget."""
    places: int
    """Places that the branch has for further rollouts."""
    room: int
    """Most further rollouts that could begin here: places, and tokens to pay for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What becomes of a state."""

    children: int = 1
    """Rollouts that go on from here and train, the one that got here included."""
    probes: int = 0
    """Rollouts that only say what the state is worth."""
    refused: str = ""
    """Why it does not fork, where it might have; empty when there is nothing to tell."""

    @property
    def more(self) -> int:
        """Rollouts that begin here."""
        return self.children - 1 + self.probes


GO_ON = Split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A state that rollouts can go on from."""

    rollout: str
    """Who got there first."""
    segment: Segment
    """The last one before the state: the world's answer, or the prompt."""
    context: Ids
    prompt_len: int
    """How many leading ids of the context are the group's prompt."""
    turn: int
    turns_left: int
    """Most actions from here on."""
    state_key: str | None = None
    snapshot: Snapshot | None = None
    """None at the prompt, where a reset leads, and where the world cannot be forked."""


class Branch(Protocol):
    """What a player asks of one branch of a tree while it plays it."""

    @property
    def place(self) -> Place | None:
        """Where it goes on from; None begins with a reset."""
        ...

    @property
    def probe(self) -> bool:
        """Whether it is played only to see what its state is worth."""
        ...

    @property
    def rng(self) -> Rng:
        """What a world that is resumed draws from."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether every state needs a snapshot, fork or not."""
        ...

    @property
    def left(self) -> int | None:
        """Tokens that it may still sample; None bounds nothing."""
        ...

    def spend(self, tokens: int, *, look: bool = False) -> None:
        """Count what was sampled."""
        ...

    async def split(self, state: State, look: Look) -> Split:
        """How many go on from here: what the plan wishes, if it can be paid for."""
        ...

    def grow(self, place: Place, split: Split) -> None:
        """Begin what was granted; takes over the place's snapshot."""
        ...


class GroupPlan(Protocol):
    """Decides for one group. Deterministic: the same group asks it the same and hears the same."""

    @property
    def keeps(self) -> bool:
        """Whether the snapshots of all states are kept until the chains have ended, for `finish`."""
        ...

    @property
    def spreads(self) -> bool:
        """Whether forks may fork again: then the places that are left are divided among children alike. Otherwise the
        branch that was there first keeps them."""
        ...

    @property
    def draws(self) -> bool:
        """Whether every place is meant for one state: those that a chain never got to are told."""
        ...

    def places(self, chain: int) -> int:
        """Most rollouts that begin in the tree of this chain, probes included, itself not."""
        ...

    async def fanout(self, point: Point, look: Look) -> Split:
        """What becomes of a state, before any of its children is sampled. Asked once for each."""
        ...

    def finish(self, states: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Forks of chains that have ended: (chain, state), for chains with so many states that can be forked."""
        ...


class Brancher(Protocol):
    """A branching policy at work."""

    def group(self, seed: Stream, *, turns: int | None) -> GroupPlan:
        """The plan of one group, of rollouts with at most so many turns; None where that is not known."""
        ...


class Branching(Protocol):
    """What a recipe says about forks. `treadle.agents.branchings.BRANCHING` has the names."""

    name: ClassVar[str]
    fanout_before_children: ClassVar[bool]
    """Whether the fan-out of every state is decided before any child of it is sampled."""

    @property
    def budget(self) -> Budget:
        """What a group may cost."""
        ...

    def rollouts(self, size: int) -> int:
        """Most rollouts of a group of so many chains that train."""
        ...

    def require(self, *, size: int, limits: RolloutLimits, deterministic: bool) -> None:
        """Raise ConfigError, naming the key, where it does not fit the rest of the recipe."""
        ...

    def begin(self, *, size: int, limits: RolloutLimits) -> Brancher | None:
        """For groups of so many chains; None where nothing forks and nothing is bounded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the branching policies have in common. Raises ConfigError naming the key."""

    tokens_per_group: int | None = None
    """Most sampled tokens of a group: rollouts, failed attempts, probes and looks. None bounds nothing."""
    reserve_tokens: int | None = None
    """What a rollout must be able to pay for before it begins. None: the most that it could sample. A smaller number
    lets more begin, and ends those that become longer than their part: (truncated, limit), type `budget`."""
    rng: Rng = "same"
    """What a forked world draws from: what it would have drawn unforked, or a stream of its own (`split`)."""

    def __post_init__(self) -> None:
        for key in ("tokens_per_group", "reserve_tokens"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"branching.{key}: got {value}, expected >= 1 or none")

    @property
    def budget(self) -> Budget:
        """These numbers."""
        return self

    def parts(self, size: int) -> int:
        """Equal parts that the budget of a group of so many chains is cut into."""
        return size

    def need(self, limits: RolloutLimits, *, turns: int | None, context: int = 0) -> int:
        """Tokens that a rollout must be able to pay for before it begins with so many turns to go."""
        most = limits.max_context - context
        if turns is not None:
            most = min(most, turns * limits.max_tokens_per_turn)
        return max(1, most if self.reserve_tokens is None else min(most, self.reserve_tokens))

    def require(self, *, size: int, limits: RolloutLimits, deterministic: bool) -> None:
        """Raise ConfigError when the budget cannot pay for the rollouts that a group begins with."""
        least = self.parts(size) * self.need(limits, turns=limits.max_turns)
        if self.tokens_per_group is not None and self.tokens_per_group < least:
            raise ConfigError(
                f"branching.tokens_per_group={self.tokens_per_group} cannot pay for {self.parts(size)} rollouts of a "
                f"group: expected at least {least}; raise it, lower limits.max_turns, max_tokens_per_turn or "
                "max_context, or state in branching.reserve_tokens what a rollout takes"
            )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What branching did in one group."""

    forks: int = 0
    """Rollouts that began at another one's state and train."""
    probes: int = 0
    independent: int = 0
    """Rollouts that were played from a reset in place of forks, because the world cannot be forked."""
    looks: int = 0
    look_tokens: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Rollouts that did not begin, by reason."""
    snapshots: int = 0
    """Taken."""
    held: int = 0
    """Snapshots that are held now."""
    held_most: int = 0
    held_bytes: int = 0
    held_bytes_most: int = 0

    def facts(self) -> dict[str, Value]:
        """Flat, for events."""
        return {
            "forks": self.forks, "probes": self.probes, "independent": self.independent, "looks": self.looks,
            "look_tokens": self.look_tokens, "snapshots": self.snapshots, "snapshots_held": self.held_most,
            "snapshot_bytes": self.held_bytes_most,
            **{f"refused.{reason}": count for reason, count in sorted(self.refused.items())},
        }


class Unforked:
    """The plain half of a plan: nothing forks. Plans override what they mean."""

    keeps: bool = False
    spreads: bool = True
    draws: bool = False

    def places(self, chain: int) -> int:
        """None."""
        return 0

    async def fanout(self, point: Point, look: Look) -> Split:
        """Go on."""
        return GO_ON

    def finish(self, states: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Nothing."""
        return ()
