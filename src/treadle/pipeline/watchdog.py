"""The watchdog: what is done about a wait before it ends the run.

Pumps wait on the board, which knows who waits for what and since when; every attempt that is played is on a leash,
which knows since when it has made no segment. The watchdog looks at both again and again and acts, gentlest first:

    promote   an update has waited for its groups for long: those that it lacks go first at the engine, from their next
              turn on
    cancel    an attempt has made no segment for long: it ends (error, infra), and is played again or made up for by its
              siblings, as budgets and `min_valid` say. This alone is done for evaluations too, and for a single
              rollout, which no update waits for: there it is played again, or stays unscored
    shrink    an update has waited for long, and nobody who plays in the groups that it lacks has made a segment for as
              long: it trains without them, if anything is left to train. What plays there is given up; a group that
              has too few valid rollouts then is dropped, reason `late`
    restart   (the engine's own doing) a copied engine whose process ended is started again with the weights that it had

Each is bounded: a ticket is promoted once and given up once, an attempt is cancelled once, and attempts have budgets.
Each is told as `watchdog.acted`. A wait that none of them ends stops the run with its name after `pipeline.stall_s`.
Nothing is done about a batch that the ledger has recorded: it is taken as it was.

Who waits for whom: watchdog and `Silence` for the clock alone. They change the board and the leashes and call nobody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from treadle.agents.group_player import GroupPlayer
from treadle.core.errors import ConfigError
from treadle.core.events import Value
from treadle.core.outcome import Origin, Outcome, Status
from treadle.pipeline.board import Board, Entry, State, batch_wait
from treadle.pipeline.ledger import Ledger
from treadle.pipeline.schedule import Schedule

T = TypeVar("T")
Remedy = Literal["promote", "cancel", "shrink", "restart"]
LOOK_S = 15.0
"""The longest time between two looks."""
LOOKS = 10
"""How often it looks, at least, within the shortest time that it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogConfig:
    """Seconds before each remedy; None never takes it. Raises ConfigError naming the key.

    What a remedy changes depends on time, so a run that needed one cannot be repeated exactly. By default only silence
    is acted on, and far behind what a single call may take (`limits.generate_s`, the time limits of `host` and of
    tools): worlds whose calls take minutes never meet it. Raise these with those limits; a recipe in which they
    contradict is refused.
    """

    promote_s: float | None = None
    """An update's wait for its groups, before those that it lacks go first at the engine. How long a batch takes is the
    recipe's affair, and earlier tickets go first anyway unless `pipeline.schedule` is `shortest`: off by default."""
    rollout_s: float | None = 1200.0
    """Without a new segment, before an attempt is cancelled and played again."""
    shrink_s: float | None = 1500.0
    """An update's wait for groups, and silence of all who play in them, before it goes on with what there is."""
    restarts: int = 2
    """How often a copied engine's process that ended is started again; 0 never does it."""

    def __post_init__(self) -> None:
        for key, seconds in (
            ("promote_s", self.promote_s), ("rollout_s", self.rollout_s), ("shrink_s", self.shrink_s),
        ):
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"watchdog.{key}: got {seconds}, expected > 0 seconds, or none")
        if self.restarts < 0:
            raise ConfigError(f"watchdog.restarts: got {self.restarts}, expected >= 0")

    @property
    def look_s(self) -> float | None:
        """Seconds between two looks; None where there is nothing to look for."""
        return look_s(self.promote_s, self.rollout_s, self.shrink_s)


def remedy(action: Remedy, *, wait: str, lacks: str, seconds: float) -> dict[str, Value]:
    """The values of `watchdog.acted`: `wait` has waited for what it `lacks` for so many seconds."""
    return {"wait": wait, "for": lacks, "since_s": seconds, "action": action}


def look_s(*patience_s: float | None) -> float | None:
    """Seconds between two looks at what is waited for so long; None where there is nothing to look for."""
    held = [seconds for seconds in patience_s if seconds is not None]
    return min(LOOK_S, min(held) / LOOKS) if held else None


class Silence:
    """Gives up the attempts of one player that have made no segment for so long, each once."""

    def __init__(self, most_s: float | None, *, player: GroupPlayer, ledger: Ledger) -> None:
        self.most_s = most_s
        """None gives nobody up."""
        self.player = player
        self.ledger = ledger
        self.taken = 0
        """Attempts that were given up."""

    async def over(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """What `work`, in which the player plays, comes to. Its errors come in a group."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self.run(), name="watchdog")
            found = await work()
            watch.cancel()
        return found

    async def run(self) -> None:
        """Look again and again until cancelled; return at once where there is nothing to look for."""
        every = look_s(self.most_s)
        while every is not None:
            await self.player.clock.sleep(every)
            self.look()

    def look(self) -> None:
        """Give up whoever has been silent for too long by now."""
        now = self.player.clock.now()
        for rollout, leash in self.player.playing.items():
            silent = now - leash.since
            if self.most_s is None or silent < self.most_s:
                continue
            lacks = f"the {leash.waits_for}"
            message = f"no new segment for {silent:.0f} s while it waited for {lacks}"
            if leash.cut(Outcome(status=Status.ERROR, origin=Origin.INFRA, type="silent", message=message)):
                self.taken += 1
                facts = remedy("cancel", wait=f"rollout {rollout}", lacks=lacks, seconds=silent)
                self.ledger.tell("watchdog.acted", facts)


class Watchdog:
    """Of one loop."""

    def __init__(
        self, config: WatchdogConfig, *, board: Board, schedule: Schedule, player: GroupPlayer, ledger: Ledger,
        boost: int,
    ) -> None:
        self.config = config
        self.board = board
        self.schedule = schedule
        """Says which tickets a batch lacks."""
        self.player = player
        self.ledger = ledger
        self.boost = boost
        """How much sooner a promoted ticket is served: as many tickets as may be outstanding."""
        self.silence = Silence(config.rollout_s, player=player, ledger=ledger)
        self._taken: Counter[str] = Counter()

    async def run(self) -> None:
        """Look again and again until cancelled; return at once where there is nothing to look for."""
        every = self.config.look_s
        while every is not None:
            await self.board.clock.sleep(every)
            self.look()

    def look(self) -> None:
        """Take every remedy whose time has come."""
        now, board, config = self.board.clock.now(), self.board, self.config
        self.silence.look()
        since = board.waits.get(batch_wait(board.batches + 1))
        if since is None or board.stopping:
            return
        lacking = [board.entries[ticket] for ticket in self.schedule.missing(board) if ticket not in board.late]
        if config.promote_s is not None and now - since >= config.promote_s:
            self._promote(lacking, now - since)
        if config.shrink_s is not None and now - since >= config.shrink_s:
            self._shrink(lacking, now - since, quiet_since=now - config.shrink_s)

    def did(self) -> str:
        """What was done so far, for the line that ends a run; empty when nothing was."""
        taken = self._taken + Counter(cancel=self.silence.taken)  # adding leaves out what was never done
        counts = ", ".join(f"{count} x {action}" for action, count in sorted(taken.items()))
        return f"; the watchdog had done {counts}" if counts else ""

    def _promote(self, lacking: Sequence[Entry], waited: float) -> None:
        """Let these go first at the engine, each once."""
        for entry in lacking:
            if not entry.boost:
                entry.boost = self.boost
                self._tell("promote", self._update, f"group {entry.group.key.id}", waited)

    def _shrink(self, lacking: Sequence[Entry], waited: float, *, quiet_since: float) -> None:
        """Give these up, unless somebody stirs in one of them, or without them nothing would be left to train."""
        if not lacking or not all(self._silent(entry, quiet_since) for entry in lacking):
            return
        others = _without(self.board, lacking)
        batch = self.schedule.select(others)
        if batch is None and self.schedule.admit(others):
            batch = tuple(others.entries)  # further tickets take their place
        if batch is None or not any(self.board.entries[ticket].state is State.READY for ticket in batch):
            return
        self.board.late.update(entry.ticket for entry in lacking)
        names = ", ".join(entry.group.key.id for entry in lacking)
        self._tell("shrink", self._update, f"group {names}" if len(lacking) == 1 else f"groups {names}", waited)
        self.board.touch()

    def _silent(self, entry: Entry, since: float) -> bool:
        """Whether somebody plays in this group, and nobody who does has made a segment since then."""
        start = f"{entry.group.key.id}."
        playing = [leash for rollout, leash in self.player.playing.items() if rollout.startswith(start)]
        return bool(playing) and all(leash.quiet_since <= since for leash in playing)

    @property
    def _update(self) -> str:
        return f"update {self.board.batches + 1}"

    def _tell(self, action: Remedy, wait: str, lacks: str, seconds: float) -> None:
        self._taken[action] += 1
        self.ledger.tell("watchdog.acted", remedy(action, wait=wait, lacks=lacks, seconds=seconds))


def _without(board: Board, gone: Sequence[Entry]) -> Board:
    """The board as it would be if these had been dropped."""
    other, tickets = copy(board), {entry.ticket for entry in gone}
    other.entries = {
        ticket: replace(entry, state=State.DROPPED, reason="late") if ticket in tickets else entry
        for ticket, entry in board.entries.items()
    }
    states = Counter(entry.state for entry in other.entries.values())
    other.counts = {state: states[state] for state in State}
    return other
