"""One group while it grows as a tree.

    Tree     the group: which branches play, whose snapshots are held, what it came to
    `-- Limb     one branch: a chain, a fork or a probe, over all its attempts

A limb is a member like any other: it is played until an attempt of it counts, or its retry budget is spent. What it
goes on from, its `place`, moves along as it forks: an attempt that fails behind a fork is played again from that fork,
as one more child of the same state, so that what it shares with others stays theirs. Where a chain never forked, that
is the reset. Limbs do not know each other: one that is lost leaves its siblings alone.

A snapshot is held for every limb whose place it is, and released when the last of them has moved on or ended; all that
are left when the group ends, however it ends. Where the world gives none, the children are played from resets of their
own, as independent rollouts; they, and the branch that was there, fork only behind that turn, so that a tree has as
many rollouts as it was meant to have.

Who waits for whom: the tree for its limbs, each a task of its own; a limb for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from treadle.agents.branching import GO_ON, Budget, GroupPlan, Look, Place, Point, Split, State, Tally
from treadle.agents.limits import RolloutLimits
from treadle.agents.player import Play
from treadle.envs.forking import Rng
from treadle.envs.snapshots import Snapshot
from treadle.trajectory.group import Group, Rollout

Member = Callable[[Play, Callable[[], bool]], Awaitable[Rollout | None]]
"""Plays one member until an attempt of it counts; asks before each further one whether it can be paid for."""


@dataclass(slots=True, eq=False, kw_only=True)
class Limb:
    """One branch. Satisfies `Branch`."""

    tree: Tree
    index: int
    """Place in the group."""
    chain: int
    trunk: bool = False
    depth: int = 0
    probe: bool = False
    places: range = range(0)
    """Places of further rollouts that may begin in it."""
    left: int | None = None
    place: Place | None = None
    since: int = 0
    """It does not fork before this turn."""
    kept: list[Place] = field(default_factory=list)
    """Its states, where all of them are kept."""

    @property
    def keeps(self) -> bool:
        """Whether every state needs a snapshot."""
        return self.tree.plan.keeps and self.trunk

    @property
    def rng(self) -> Rng:
        """What a world that is resumed draws from."""
        return self.tree.budget.rng

    def spend(self, tokens: int, *, look: bool = False) -> None:
        """Count what was sampled."""
        self.tree.spent += tokens
        if look:
            self.tree.tally.looks += 1
            self.tree.tally.look_tokens += tokens
        if self.left is not None:
            self.left = max(0, self.left - tokens)

    def payable(self) -> bool:
        """Whether another attempt could be paid for."""
        paid = self.left is None or self.left >= self.tree.need_at(self.place)
        if not paid:
            self.tree.tally.refused["retry"] += 1
        return paid

    async def split(self, state: State, look: Look) -> Split:
        """What the plan wishes, if it can be paid for."""
        if self.probe or state.turn < self.since:
            return GO_ON
        need, room = self.tree.need(state.turns_left, state.context), len(self.places)
        if self.left is not None:
            room = min(room, max(0, self.left // need - 1))
        wish = await self.tree.plan.fanout(Point(
            state=state, chain=self.chain, trunk=self.trunk, depth=self.depth, tokens_left=self.left,
            places=len(self.places), room=room,
        ), look)
        if wish.refused:
            self.tree.tally.refused[wish.refused] += 1
        refused = self._refused(wish, need)
        if not refused:
            return wish
        self.tree.tally.refused[refused] += wish.more
        if self.tree.plan.draws:  # what was drawn for this state is settled, for further attempts as well
            self.places, self.since = self.places[wish.more :], state.turn + 1
        return GO_ON

    def _refused(self, wish: Split, need: int) -> str:
        """Why it does not get what was wished; empty when it does."""
        if wish.more > len(self.places):
            return "places"
        if wish.more and self.left is not None and self.left < (1 + wish.more) * need:
            return "budget"
        return ""

    def grow(self, place: Place, split: Split) -> None:
        """Begin what was granted; takes over the place's snapshot."""
        self.tree.grow(self, place, split)


class Tree:
    """One group. Plays once."""

    def __init__(
        self, group: Group, play: Play, *, plan: GroupPlan, budget: Budget, size: int, limits: RolloutLimits,
        member: Member,
    ) -> None:
        self.group, self.plan, self.budget, self.size = group, plan, budget, size
        self.tally = Tally()
        self.spent = 0
        """Tokens that were sampled, looks included."""
        self._play, self._limits, self._member = play, limits, member
        turns = [bound for bound in (limits.max_turns, play.max_turns) if bound is not None]
        self._turns = min(turns) if turns else None
        self._held: dict[str, tuple[Snapshot, int]] = {}
        self._unforked = False
        """Whether the world gave no snapshot."""
        self._next = size
        """The first place that no chain owns."""

    async def play(self) -> None:
        """Play all limbs to their ends. Raises nothing but CancelledError."""
        chains = [self._chain(index) for index in range(self.size)]
        try:
            await self._all(chains)
            await self._all(self._later(chains))
        finally:
            for snapshot, _ in self._held.values():
                snapshot.release()
            self._held.clear()
            self.tally.held = self.tally.held_bytes = 0

    # -- tokens ------------------------------------------------------------------------------------------------

    def need(self, turns: int | None, context: int) -> int:
        """Tokens that a rollout must be able to pay for with so many turns to go."""
        return self.budget.need(self._limits, turns=turns, context=context)

    def need_at(self, place: Place | None) -> int:
        """The same from a place on; None is a reset of which nothing is known yet."""
        if place is None:
            return self.need(self._turns, 0)
        return self.need(place.turns_left, len(place.context))

    # -- growing -----------------------------------------------------------------------------------------------

    def grow(self, limb: Limb, place: Place, split: Split) -> None:
        """Begin what was granted at this place of a limb."""
        if limb.keeps and place.snapshot is not None:
            limb.kept.append(place)
            self._hold(place)
        forkable = place.snapshot is not None or not place.turn
        self._unforked = self._unforked or not forkable
        if split.more:
            (self._fork if forkable else self._instead)(limb, place, split)

    def _fork(self, limb: Limb, place: Place, split: Split) -> None:
        own, places = self._dealt(limb, split)
        tokens = _shared(limb.left, [self.need_at(place)] * (1 + split.more), [1 + len(p) for p in places])
        if place.turn:  # to the prompt leads a reset
            self._hold(place)
            self._let_go(limb.place)
            limb.place = place
        limb.since, limb.depth = place.turn + 1, limb.depth + (split.children > 1)
        limb.places, limb.left = places[0], tokens[0]
        self.tally.forks += split.children - 1
        self.tally.probes += split.probes
        for number, index in enumerate(own, 1):
            self._hold(place)
            self._spawn(Limb(
                tree=self, index=index, chain=limb.chain, depth=limb.depth, probe=number >= split.children,
                places=places[number], left=tokens[number], place=place, since=place.turn + 1,
            ))

    def _instead(self, limb: Limb, place: Place, split: Split) -> None:
        """The world cannot be forked: children are played from resets, probes not at all."""
        limb.since, more, lost = place.turn + 1, split.children - 1, split.probes
        if lost:
            self.tally.refused["no_snapshot"] += lost
        here, whole = self.need(place.turns_left, len(place.context)), self.need_at(None)
        if more and limb.left is not None and limb.left < here + more * whole:
            self.tally.refused["budget"] += more
            more, lost = 0, lost + more
        if self.plan.draws:
            limb.places = limb.places[lost:]
        if not more:
            return
        own, places = self._dealt(limb, Split(children=split.children))
        tokens = _shared(limb.left, [here, *[whole] * more], [1 + len(p) for p in places])
        limb.places, limb.left = places[0], tokens[0]
        self.tally.independent += more
        for number, index in enumerate(own, 1):
            self._spawn(Limb(
                tree=self, index=index, chain=limb.chain, places=places[number], left=tokens[number], since=limb.since,
            ))

    def _dealt(self, limb: Limb, split: Split) -> tuple[range, list[range]]:
        """The places of who begins here, and those that each of all then owns, the limb first."""
        own, rest = limb.places[: split.more], limb.places[split.more :]
        each = len(rest) // split.children if self.plan.spreads else 0
        first = len(rest) - each * (split.children - 1)
        cuts = [rest[:first], *(rest[at : at + each] for at in range(first, len(rest), each or len(rest) + 1))]
        return own, [*cuts, *[range(0)] * (1 + split.more - len(cuts))]

    # -- playing -----------------------------------------------------------------------------------------------

    def _chain(self, index: int) -> Limb:
        first, self._next = self._next, self._next + self.plan.places(index)
        whole = self.budget.tokens_per_group
        return Limb(
            tree=self, index=index, chain=index, trunk=True, places=range(first, self._next),
            left=None if whole is None else whole // self.budget.parts(self.size),
        )

    async def _all(self, limbs: Sequence[Limb]) -> None:
        """Play these and all that begin in them."""
        if limbs:
            async with asyncio.TaskGroup() as self._tasks:
                for limb in limbs:
                    self._spawn(limb)

    def _spawn(self, limb: Limb) -> None:
        self._tasks.create_task(self._run(limb), name=f"{self.group.key.id}.{limb.index}")

    async def _run(self, limb: Limb) -> None:
        try:
            await self._member(replace(self._play, index=limb.index, branch=limb), limb.payable)
            if self.plan.draws and limb.places:
                self.tally.refused["unreached"] += len(limb.places)
        finally:
            self._let_go(limb.place)

    def _later(self, chains: Sequence[Limb]) -> list[Limb]:
        """Forks of chains that have ended, as the plan draws them now."""
        valid = {rollout.id: rollout.leaves[-1] for rollout in self.group.valid}
        kept = [  # where a chain ended, by its budget, its score lies on what a fork would share
            [p for p in limb.kept if p.rollout in valid and p.segment.id != valid[p.rollout]] for limb in chains
        ]
        instead = self._unforked and not any(kept)
        drawn = self.plan.finish([1] * len(chains) if instead else [len(states) for states in kept])
        places = self._payable([None if instead else kept[chain][state] for chain, state in drawn])
        left = self._unspent
        tokens = _shared(left, [self.need_at(place) for place in places], [1] * len(places))
        limbs = [
            Limb(
                tree=self, index=self._next + number, chain=drawn[number][0], depth=0 if place is None else 1,
                left=tokens[number], place=place, since=self._limits.max_context,
            )
            for number, place in enumerate(places)
        ]
        for place in places:
            self.tally.forks += place is not None
            self.tally.independent += place is None
            if place is not None:
                self._hold(place)
        for place in (place for limb in chains for place in limb.kept):
            self._let_go(place)
        return limbs

    @property
    def _unspent(self) -> int | None:
        """Tokens of the whole budget that nobody sampled."""
        whole = self.budget.tokens_per_group
        return None if whole is None else whole - self.spent

    def _payable(self, places: Sequence[Place | None]) -> list[Place | None]:
        """As many of these, in order, as what is left can pay for."""
        left, needs, out = self._unspent, 0, list[Place | None]()
        for place in places:
            needs += self.need_at(place)
            if left is not None and left < needs:
                self.tally.refused["budget"] += len(places) - len(out)
                break
            out.append(place)
        return out

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _hold(self, place: Place) -> None:
        if (snapshot := place.snapshot) is None:
            return
        count = self._held.get(snapshot.id, (snapshot, 0))[1]
        self._held[snapshot.id] = (snapshot, count + 1)
        if not count:
            tally = self.tally
            tally.snapshots, tally.held, tally.held_bytes = (
                tally.snapshots + 1, tally.held + 1, tally.held_bytes + snapshot.bytes
            )
            tally.held_most = max(tally.held_most, tally.held)
            tally.held_bytes_most = max(tally.held_bytes_most, tally.held_bytes)

    def _let_go(self, place: Place | None) -> None:
        if place is None or place.snapshot is None or place.snapshot.id not in self._held:
            return
        snapshot, count = self._held[place.snapshot.id]
        if count > 1:
            self._held[snapshot.id] = (snapshot, count - 1)
            return
        del self._held[snapshot.id]
        self.tally.held -= 1
        self.tally.held_bytes -= snapshot.bytes
        snapshot.release()


def _shared(left: int | None, needs: Sequence[int], weights: Sequence[int]) -> list[int | None]:
    """Tokens for each: what it needs, and of the rest in proportion to its weight; what cannot be cut goes first."""
    if left is None or not needs:
        return [None] * len(needs)
    rest = left - sum(needs)
    more = [rest * weight // sum(weights) for weight in weights]
    more[0] += rest - sum(more)
    return [need + extra for need, extra in zip(needs, more, strict=True)]
