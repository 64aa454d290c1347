"""The ledger: the life of every rollout and group, told as events.

What the ledger holds already, from before the run was interrupted, is told again as `replayed.NAME`, so that it is
counted once.

Thin on purpose: the segments, rewards and rollout states go to the store through the group's sink as they arrive; the
ledger adds what only the pipeline knows (admission, verdicts, updates) and holds the books: every admitted rollout ends
exactly once, every ticket is closed exactly once. A listener that is the store makes it durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from treadle.agents.branching import Tally
from treadle.agents.limits import Rewards
from treadle.agents.stages import StageMeter
from treadle.core.events import Event, Listener, Value
from treadle.core.outcome import Status
from treadle.envs.task import Task
from treadle.pipeline.board import Board, Entry, State
from treadle.pipeline.past import Past
from treadle.pipeline.statistics import counts
from treadle.trajectory.group import Group, Rollout


class Ledger:
    """Writes events. Owned by the controller's event loop."""

    def __init__(
        self, listener: Listener, *, meter: StageMeter, rewards: Rewards, past: Past | None = None
    ) -> None:
        self._listener = listener
        self.meter = meter
        self.rewards = rewards
        self.past = past or Past()
        """What was told before."""
        self.board: Board | None = None
        """Touched at every rollout's end, so that a wait knows that something happens."""
        self._ended: set[str] = set()
        """Rollouts of open tickets that ended."""
        self._branched: dict[str, Mapping[str, Value]] = {}
        """What branching did in open groups."""
        self._partly: set[str] = set()
        """Open groups that branch and were given up."""
        self._fell_back = False
        """Whether it was said that a world cannot be forked: that is said once."""

    def tell(self, name: str, values: Mapping[str, Value]) -> None:
        """Emit one event."""
        name = f"replayed.{name}" if self.past.told(name, values) else name
        self._listener.emit(Event(name=name, at=self.meter.clock.wall(), values=dict(values)))

    def admitted(self, entry: Entry, *, outstanding: int, permits: int) -> None:
        """A ticket took a permit."""
        key = entry.group.key
        self.tell("group.admitted", {
            "group": key.id, "ticket": key.ticket, "task": key.task, "family": key.family,
            "level": entry.task.level, "version": key.admitted_version, "outstanding": outstanding,
            "permits": permits, "number": entry.place.number, "cursor": entry.place.cursor,
            "skipped_tasks": entry.skipped,
        })
        self.opened(entry.group, entry.task)

    def opened(self, group: Group, task: Task) -> None:
        """A group was opened; what ended in it before the run was interrupted is told unless it was."""
        last = {rollout.index: rollout.id for rollout in group.rollouts.values()}
        for rollout in [rollout for rollout in group.rollouts.values() if rollout.outcome is not None]:
            self._ended.add(rollout.id)
            if not self.past.told("rollout.done", {"rollout": rollout.id}):
                self._tell_end(group, rollout, task, retried=last[rollout.index] != rollout.id)

    def taken(self, update: int, batch: Sequence[Entry], ready: Sequence[Entry], *, version: int) -> None:
        """An update took its batch, in this order, to train what is ready."""
        self.tell("batch.taken", {
            "update": update, "version": version, "tickets": ",".join(str(entry.ticket) for entry in batch),
            "trains": ",".join(str(entry.ticket) for entry in ready),
        })
        for group in (entry.group for entry in batch if entry.group.key.id in self._partly):
            self._tell_branched(group)  # it is not played again: what it cost is settled

    def ended(self, group: Group, rollout: Rollout, task: Task, *, retried: bool) -> None:
        """A rollout ended; called once for each."""
        assert rollout.id not in self._ended, f"rollout {rollout.id} ended twice"
        assert rollout.outcome is not None, f"rollout {rollout.id} has no outcome"
        self._ended.add(rollout.id)
        self.meter.count("rollouts")
        self.meter.count("failed", rollout.outcome.failed)
        self.meter.count("retries", retried)
        self._tell_end(group, rollout, task, retried=retried)
        if self.board is not None:
            self.board.touch()

    def branched(self, group: Group, tally: Tally, *, whole: bool) -> None:
        """A group that branches was played.

        One that was given up may be played again, and is told only when an update has taken its ticket.
        """
        self._branched[group.key.id] = tally.facts()
        if tally.independent and not self._fell_back:
            self._fell_back = True
            self.tell("branching.fell_back", {"group": group.key.id, "task": group.key.task})
        if whole:
            self._tell_branched(group)
        else:
            self._partly.add(group.key.id)

    def spent(self, group: Group) -> int:
        """Tokens that were sampled for a group: failed attempts, probes and looks included."""
        return sampled_tokens(group) + int(self.branching(group).get("look_tokens") or 0)

    def branching(self, group: Group) -> Mapping[str, Value]:
        """What branching did in a group; empty where nothing branches."""
        return self._branched.get(group.key.id) or self.past.branched.get(group.key.ticket, {})

    def _tell_branched(self, group: Group) -> None:
        facts = self._branched[group.key.id]
        self.tell("group.branched", {"group": group.key.id, "ticket": group.key.ticket, **facts})

    def _tell_end(self, group: Group, rollout: Rollout, task: Task, *, retried: bool) -> None:
        assert rollout.outcome is not None
        actions = [s for s in group.segments.values() if s.rollout == rollout.id and s.is_action]
        spent = rollout.seconds
        self.tell("rollout.done", {
            "group": group.key.id, "rollout": rollout.id, "index": rollout.index, "attempt": rollout.attempt,
            "task": task.id, "family": task.family, "level": task.level, "split": task.split,
            "status": rollout.outcome.status.value, "origin": rollout.outcome.origin.value,
            "type": rollout.outcome.type, "message": rollout.outcome.message, "reward": self.rewards.raw(rollout),
            "turns": len(actions), "tokens": sum(len(s) for s in actions),
            "context_tokens": sum(map(len, group.path(rollout.leaves[-1]))) if rollout.leaves else 0,
            "generate_s": spent.get("generate", 0.0), "env_s": spent.get("env", 0.0),
            "score_s": spent.get("score", 0.0), "retried": retried, "forked_from": rollout.forked_from,
            "probe": rollout.probe,
        })

    def judged(self, entry: Entry) -> None:
        """A ticket is ready or dropped."""
        facts = _group_facts(entry, self.rewards, seconds=self.meter.clock.now() - entry.since)
        if entry.state is State.DROPPED:
            self.tell("group.dropped", {**facts, "reason": entry.reason})
        else:
            self.tell("group.ready", facts)

    def trained(self, entry: Entry, *, version: int, staleness: int) -> None:
        """A ticket was trained."""
        self.tell("group.trained", {
            "group": entry.group.key.id, "ticket": entry.ticket, "version": version, "staleness": staleness,
        })

    def closed(self, group: Group) -> None:
        """A ticket was closed: each of its rollouts must have ended."""
        unended = set(group.rollouts) - self._ended
        assert not unended, f"group {group.key.id} was closed while {sorted(unended)} had not ended"
        self.forget(group)

    def forget(self, group: Group) -> None:
        """A ticket was given up with an error under way, which may be why a rollout could not be ended."""
        self._ended -= set(group.rollouts)
        self._branched.pop(group.key.id, None)
        self._partly.discard(group.key.id)


def sampled_tokens(group: Group) -> int:
    """Tokens that the policy sampled in this group."""
    return sum(len(s) for s in group.segments.values() if s.logprobs is not None)


def _group_facts(entry: Entry, rewards: Rewards, *, seconds: float) -> dict[str, Value]:
    group, valid = entry.group, entry.group.valid
    raw = [value for value in map(rewards.raw, valid) if value is not None]
    return {
        "group": group.key.id, "ticket": group.key.ticket, "task": group.key.task, "family": group.key.family,
        "level": entry.task.level,
        "rollouts": sum(r.outcome is not None and r.outcome.status is not Status.CANCELLED
                        for r in group.rollouts.values()),
        "valid": len(valid), "reward_mean": sum(raw) / len(raw) if raw else None,
        "solved_share": sum(map(rewards.solved, valid)) / len(valid) if valid else None,
        "tokens": sampled_tokens(group), "seconds_s": seconds, **counts("masked", Counter(entry.masked.values())),
    }
