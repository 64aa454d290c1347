"""Episodes on a cassette: recorded while a world plays, played without one, or the second as long as it goes.

    RecordingHost   host -> cassette        what passes is kept
    RecordedHost    cassette -> host        no environment at all
    FallbackHost    cassette, then world    at the first gap the world is led to where the episode stands

All are a `Host`, so that players, demonstrations and evaluations know nothing of it.

Forks. An answer is found by the history that led to it, so a fork with the same randomness goes on with its parent's
key. One that draws from a stream of its own has a history of its own from there on: the fork is part of the key. A
recorded host forks by that key alone, unless the world could not be forked there; a fallback remembers actions and
forks, so that a world can be led after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from treadle.core.actions import Action
from treadle.core.errors import EnvError, GraderError, ReplayDiverged, StoreError
from treadle.core.outcome import OK, Origin, Outcome, Status, failure
from treadle.core.seeds import Stream
from treadle.envs.cassette import Cassette, Trail, message_in, outcome_in, step_in, step_out, tool_in
from treadle.envs.env import Fork
from treadle.envs.forking import Rng
from treadle.envs.host import Host, Opened, Score
from treadle.envs.snapshots import Snapshot, SnapshotStore
from treadle.envs.step import Step
from treadle.envs.task import Task

ASIDE = ("seconds", "calls", "id", "tool_call_id")
"""What may differ between equal answers: how long they took, and how calls are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taped:
    """Where an episode on a cassette stands."""

    task: Task
    opened: Opened
    """How it began, with the actions that are left."""
    key: bytes
    taken: int
    """Actions since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Where an episode stands that began on a cassette, and how to lead a world there."""

    taped: Taped
    start: tuple[Task, Stream, str]
    done: tuple[tuple[Action, str, Step], ...]
    splits: tuple[tuple[int, str], ...]
    """After how many actions it became a fork that draws from a stream of its own, and its name."""


class RecordingHost:
    """A host whose answers are kept."""

    def __init__(self, host: Host, cassette: Cassette, *, trail: Trail | None = None, who: str = "") -> None:
        """`trail` and `who` say where an episode stands that is recorded from its middle on."""
        self._host, self._cassette = host, cassette
        self._trail = trail
        self._who = who
        self._seen: set[str] = set()

    @property
    def tier(self) -> str:
        """Where the last answer came from."""
        return self._host.tier

    async def open(self, task: Task, seed: Stream, *, rollout: str = "") -> Opened:
        """As the host's."""
        opened = await self._host.open(task, seed, rollout=rollout)
        self._who = rollout
        self._trail = Trail.start(task, seed, reads=self._cassette.reads)
        if opened.outcome is None:
            self._cassette.keep(self._trail.key, asdict(opened), who=rollout, aside=ASIDE)
        return opened

    async def resume(self, snapshot: Snapshot, *, rollout: str = "", rng: Rng = "same") -> Opened:
        """As the host's."""
        assert snapshot.trail is not None, "a recording host makes snapshots with a trail"
        self._trail, self._who = Trail(bytes.fromhex(snapshot.trail), self._cassette.reads), rollout
        if rng == "split":
            self._trail.split(snapshot.id, rollout)
        return await self._host.resume(snapshot, rollout=rollout, rng=rng)

    async def snapshot(self) -> Snapshot | None:
        """As the host's, with where the cassette stands."""
        if self._trail is None:
            return None
        made = await self._host.snapshot()
        try:
            self._cassette.keep(self._trail.fork, {"forks": made is not None}, who=self._who)
        except StoreError:
            if made is not None:
                made.release()
            raise
        return None if made is None else replace(made, trail=self._trail.key.hex())

    async def act(self, action: Action, *, step_id: str) -> Step:
        """As the host's."""
        step = await self._host.act(action, step_id=step_id)
        if step_id not in self._seen:
            self._seen.add(step_id)
            assert self._trail is not None, "act before open"
            key = self._trail.act(action)
            if step.outcome is None or step.outcome.scored:
                self._cassette.keep(key, step_out(step, action), who=self._who, aside=ASIDE)
        return step

    async def score(self) -> Score:
        """As the host's."""
        score = await self._host.score()
        if score.outcome is None and self._trail is not None:
            parts = None if score.parts is None else dict(score.parts)
            self._cassette.keep(self._trail.score, {"parts": parts}, who=self._who)
        return score

    async def close(self) -> None:
        """As the host's."""
        await self._host.close()


class RecordedHost:
    """A host that has a cassette in place of an environment. What is not on it fails the episode (error, env)."""

    def __init__(self, cassette: Cassette, *, snapshots: SnapshotStore | None = None) -> None:
        self._cassette, self.snapshots = cassette, snapshots or SnapshotStore()
        self._trail: Trail | None = None
        self._task = self._who = ""
        self._stood: Taped | None = None
        """Where this host began; None when nothing was found."""
        self._forks = 0
        self._steps: dict[str, Step] = {}
        self._end: Outcome | None = None

    @property
    def tier(self) -> str:
        """Where the last answer came from."""
        return "recorded"

    async def open(self, task: Task, seed: Stream, *, rollout: str = "") -> Opened:
        """The recorded beginning."""
        self._trail = Trail.start(task, seed, reads=self._cassette.reads)
        self._task, self._who = task.id, rollout
        flat = self._cassette.find(self._trail.key, rollout)
        if flat is None:
            self._end = self._missing("its beginning with this seed")
            return Opened(outcome=self._end)
        opened = opened_in(flat)
        self._stood = Taped(task=task, opened=opened, key=self._trail.key, taken=0)
        return opened

    async def resume(self, snapshot: Snapshot, *, rollout: str = "", rng: Rng = "same") -> Opened:
        """Go on with the history of the snapshot."""
        return self.resume_at(snapshot.state(Taped), rollout, split=snapshot.id if rng == "split" else "")

    def resume_at(self, taped: Taped, rollout: str, *, split: str) -> Opened:
        """Go on from there; `split` is the id of what a fork with a stream of its own was forked from."""
        self._trail = Trail(taped.key, self._cassette.reads)
        if split:
            self._trail.split(split, rollout)
        self._task, self._who, self._stood = taped.task.id, rollout, taped
        return taped.opened

    async def snapshot(self) -> Snapshot | None:
        """Where its history stands; None where the world could not be forked when it was recorded."""
        taped = self.stands()
        return None if taped is None else self.held(taped)

    def stands(self) -> Taped | None:
        """Where the episode stands; None, and counted, when it is over or cannot be forked."""
        if self._stood is None or self._trail is None or self._end is not None:
            self.snapshots.refuse("over")
            return None
        flat = self._cassette.find(self._trail.fork, self._who)
        if flat is not None and not flat["forks"]:
            self.snapshots.refuse("none")
            return None
        begun, acted = self._stood.opened, len(self._steps)
        return Taped(
            task=self._stood.task, opened=replace(begun, max_turns=begun.max_turns - acted), key=self._trail.key,
            taken=self._stood.taken + acted,
        )

    def held(self, state: Taped | Past) -> Snapshot | None:
        """A snapshot of a state of this host's, named as a live host names them."""
        taped = state.taped if isinstance(state, Past) else state
        again = f"+{self._forks + 1}" if self._forks else ""
        made = self.snapshots.hold(f"{self._who}@{taped.taken}{again}", state, level=Fork.REPLAY, shared=(taped.task,))
        self._forks += made is not None
        return made

    async def act(self, action: Action, *, step_id: str) -> Step:
        """The recorded answer; the same `step_id` again gives the same step."""
        if step_id in self._steps:
            return self._steps[step_id]
        if self._trail is None or self._end is not None:
            raise RuntimeError(f"step {step_id!r}: the episode is over ({self._end or 'never opened'})")
        flat = self._cassette.find(self._trail.act(action), self._who)
        number = len(self._steps) + 1
        step = Step(outcome=self._missing(f"the answer to action {number}")) if flat is None else step_in(flat, action)
        self._end = step.outcome or (OK if step.terminated else None)
        self._steps[step_id] = step
        return step

    async def score(self) -> Score:
        """The recorded grading."""
        if self._trail is None or (self._end is not None and not self._end.scored):
            return Score(outcome=self._end or failure(Origin.GRADER, GraderError("score before open")))
        flat = self._cassette.find(self._trail.score, self._who)
        if flat is None:
            missing = self._missing(f"the grading after {len(self._steps)} actions")
            return Score(outcome=Outcome(
                status=Status.ERROR, origin=Origin.GRADER, type=missing.type, message=missing.message
            ))
        return Score(parts=flat["parts"])

    async def close(self) -> None:
        """Nothing is held."""

    def _missing(self, what: str) -> Outcome:
        return failure(Origin.ENV, EnvError(f"cassette {self._cassette.file}: task {self._task}: {what} is not on it"))


class FallbackHost:
    """A cassette as far as it goes, then the world, led through the same actions and recorded from there."""

    def __init__(
        self, cassette: Cassette, make_host: Callable[[], Host], *, snapshots: SnapshotStore | None = None
    ) -> None:
        self._cassette, self._make = cassette, make_host
        self._tape = RecordedHost(cassette, snapshots=snapshots)
        self._playing: Host = self._tape
        """The cassette, later the world."""
        self._world: Host | None = None
        self._start: tuple[Task, Stream, str] | None = None
        self._who = ""
        self._past: list[tuple[Action, str, Step]] = []
        self._splits: tuple[tuple[int, str], ...] = ()
        self._failed: Outcome | None = None
        """Why the world could not be led to where the episode stands."""

    @property
    def tier(self) -> str:
        """Where the last answer came from."""
        return self._playing.tier

    async def open(self, task: Task, seed: Stream, *, rollout: str = "") -> Opened:
        """The recorded beginning, or the world's."""
        self._start, self._who = (task, seed, rollout), rollout
        opened = await self._playing.open(task, seed, rollout=rollout)
        if opened.outcome is None:
            return opened
        self._world = self._make()
        self._playing = RecordingHost(self._world, self._cassette)
        return await self._playing.open(task, seed, rollout=rollout)

    async def resume(self, snapshot: Snapshot, *, rollout: str = "", rng: Rng = "same") -> Opened:
        """Go on where the snapshot stands: on the cassette, or in a world."""
        self._who = rollout
        if snapshot.trail is not None:
            self._world = self._make()
            self._playing = RecordingHost(self._world, self._cassette)
            return await self._playing.resume(snapshot, rollout=rollout, rng=rng)
        past = snapshot.state(Past)
        self._start, self._past, self._splits = past.start, list(past.done), past.splits
        if rng == "split":
            self._splits = (*past.splits, (len(past.done), rollout))
        return self._tape.resume_at(past.taped, rollout, split=snapshot.id if rng == "split" else "")

    async def snapshot(self) -> Snapshot | None:
        """Of the world; on the cassette, of what has to be done to lead a world there."""
        if self._world is not None:
            return await self._playing.snapshot() if self._failed is None else None
        taped = self._tape.stands()
        if taped is None or self._start is None:
            return None
        return self._tape.held(Past(taped=taped, start=self._start, done=tuple(self._past), splits=self._splits))

    async def act(self, action: Action, *, step_id: str) -> Step:
        """The recorded answer, or the world's."""
        if self._failed is not None:
            raise RuntimeError(f"step {step_id!r}: the episode is over ({self._failed})")
        step = await self._playing.act(action, step_id=step_id)
        if self._world is not None:
            return step
        if step.outcome is None or step.outcome.scored:
            if all(step_id != known for _, known, _ in self._past):
                self._past.append((action, step_id, step))
            return step
        await self._lead()
        return await self._playing.act(action, step_id=step_id) if self._failed is None else Step(outcome=self._failed)

    async def score(self) -> Score:
        """The recorded grading, or the world's."""
        if self._failed is not None:
            return Score(outcome=self._failed)
        score = await self._playing.score()
        if self._world is not None or score.outcome is None:
            return score
        await self._lead()
        return await self._playing.score() if self._failed is None else Score(outcome=self._failed)

    async def close(self) -> None:
        """Free the world, if there is one."""
        if self._world is not None:
            await self._world.close()

    async def _lead(self) -> None:
        """Lead a fresh world to where the episode stands and go on with it, or say why that failed.

        A world that answers otherwise on the way is not the one that was recorded: the episode has no sequel.
        """
        assert self._start is not None, "nothing is led before open"
        self._world = self._make()
        task, seed, rollout = self._start
        trail = Trail.start(task, seed, reads=self._cassette.reads)
        self._failed = (await self._world.open(task, seed, rollout=rollout)).outcome
        await self._split(trail, 0)
        for number, (action, step_id, recorded) in enumerate(self._past, 1):
            if self._failed is not None:
                return
            step = await self._world.act(action, step_id=step_id)
            trail.act(action)
            if step.outcome is not None and not step.outcome.scored:
                self._failed = step.outcome
            elif (step.messages, step.done) != (recorded.messages, recorded.done):
                self._failed = failure(Origin.ENV, ReplayDiverged(
                    f"cassette {self._cassette.file}: task {task.id}: the world answers action {number} "
                    "otherwise than it was recorded"
                ))
            await self._split(trail, number)
        self._playing = RecordingHost(self._world, self._cassette, trail=trail, who=self._who)

    async def _split(self, trail: Trail, taken: int) -> None:
        """Fork the world that is led where the episode became a fork with a stream of its own."""
        for rollout in (name for after, name in self._splits if after == taken):
            if self._failed is not None or self._world is None:
                return
            led, snapshot = self._world, await self._world.snapshot()
            if snapshot is None:
                self._failed = failure(Origin.ENV, EnvError(
                    f"cassette {self._cassette.file}: an episode that forked on it goes on in a world that cannot be "
                    "forked: set cassette.mode=strict, or an environment with another fork than none"
                ))
                return
            trail.split(snapshot.id, rollout)
            try:
                self._world = self._make()
                self._failed = (await self._world.resume(snapshot, rollout=rollout, rng="split")).outcome
            finally:
                snapshot.release()
                await led.close()


def opened_in(flat: Mapping[str, Any]) -> Opened:
    """How an episode began, from plain values."""
    return Opened(
        messages=tuple(map(message_in, flat["messages"])), tools=tuple(map(tool_in, flat["tools"])),
        outcome=None if flat["outcome"] is None else outcome_in(flat["outcome"]), max_turns=flat["max_turns"],
    )
