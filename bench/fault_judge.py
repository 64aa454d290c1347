"""The verdict on a run under faults: its journal against the ledger, run.db, and what the learner was given."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.fault_lab import Fault, Lab
from treadle.core.events import Value
from treadle.pipeline.config import PipelineConfig
from treadle.trajectory.store import read_events, read_rollouts


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was not as it should be."""

    wrong: list[str] = field(default_factory=list)
    """One line each."""
    as_reward: int = 0
    """Rollouts that failed and were given to the learner with a reward."""

    def require(self, holds: bool, line: str) -> None:
        """Note the line unless it holds."""
        if not holds:
            self.wrong.append(line)

    def add(self, other: Verdict) -> None:
        """Take in the verdict on another run of the same kind."""
        self.wrong += other.wrong
        self.as_reward += other.as_reward


def judge(lab: Lab, faults: Sequence[Fault]) -> Verdict:
    """Compare a finished run with the journal.

    Every rollout ended once, as the table says for what was done to it, and `ok` when nothing was. What failed has no
    reward and was played again as often as its budget allows. A group trains exactly when enough of its rollouts are
    valid, and then all of those train, once, and nobody else. run.db says what the ledger was told. The lab's groups
    must have something to compare whenever they are large enough.
    """
    verdict = Verdict()
    wanted = {f.rollout: f for f in faults if f.rollout and not f.fails} | {f.rollout: f for f in faults if f.fails}
    ended = lab.told.named("rollout.done")
    _judge_ends(lab.config, ended, wanted, verdict)
    _judge_groups(lab, ended, wanted, verdict)
    if lab.folder is not None:
        _judge_store(lab, ended, verdict)
    return verdict


def _judge_ends(
    config: PipelineConfig, ended: Sequence[Mapping[str, Value]], wanted: Mapping[str, Fault], verdict: Verdict
) -> None:
    times = Counter(str(end["rollout"]) for end in ended)
    verdict.wrong += [f"{rollout} ended {count} times" for rollout, count in times.items() if count != 1]
    verdict.wrong += [f"{name} never ended: {fault.what}" for name, fault in wanted.items() if name not in times]
    budget = {"infra": config.infra_retries, "env": config.env_retries, "grader": 0}
    failures: defaultdict[tuple[str, str], int] = defaultdict(int)
    for end in ended:
        rollout = str(end["rollout"])
        fault = wanted.get(rollout, Fault(what="nothing"))
        got = (end["status"], end["origin"])
        verdict.require(
            got == (fault.status, fault.origin),
            f"{rollout} ended {got} ({end['type']}: {end['message']}), expected {(fault.status, fault.origin)} after: "
            f"{fault.what}",
        )
        if fault.status == "error":
            member = (rollout.rpartition(".")[0], fault.origin)
            failures[member] += 1
            again = failures[member] <= budget[fault.origin]
            verdict.require(end["retried"] == again, f"{rollout}: played again is {end['retried']}, expected {again}")
        verdict.require((end["reward"] is None) == fault.fails, f"{rollout} has reward {end['reward']}: {fault.what}")


def _judge_groups(
    lab: Lab, ended: Sequence[Mapping[str, Value]], wanted: Mapping[str, Fault], verdict: Verdict
) -> None:
    config, valid = lab.config, defaultdict[str, set[str]](set)
    for end in ended:
        rollout = str(end["rollout"])
        if rollout not in wanted or not wanted[rollout].fails:
            valid[str(end["group"])].add(rollout)
    need = max(2, math.ceil(config.min_valid * config.group_size - 1e-9))
    ends = {name: Counter(str(e["group"]) for e in lab.told.named(name)) for name in ("group.trained", "group.dropped")}
    admitted = [str(e["group"]) for e in lab.told.named("group.admitted")]
    verdict.require(len(admitted) == config.tickets, f"{len(admitted)} tickets were admitted of {config.tickets}")
    meant: set[str] = set()
    for group in admitted:
        trained, dropped = ends["group.trained"][group], ends["group.dropped"][group]
        enough = len(valid[group]) >= need
        verdict.require(
            (trained, dropped) == ((1, 0) if enough else (0, 1)),
            f"{group} was trained {trained} and dropped {dropped} times with {len(valid[group])} valid rollouts",
        )
        meant |= valid[group] if enough else set()
    given = Counter(rollout for rollout, _ in lab.book)
    verdict.as_reward += sum(count for rollout, count in given.items() if rollout in wanted and wanted[rollout].fails)
    verdict.wrong += [f"{rollout} was given to the learner {given[rollout]} times" for rollout in set(given) | meant
                      if given[rollout] != (rollout in meant)]


def _judge_store(lab: Lab, ended: Sequence[Mapping[str, Value]], verdict: Verdict) -> None:
    assert lab.folder is not None
    stored = {rollout.id: rollout for _, rollout in read_rollouts(lab.folder)}
    told = {str(end["rollout"]): end for end in ended}
    verdict.require(set(stored) == set(told), f"run.db holds {len(stored)} rollouts, the ledger ended {len(told)}")
    for name, rollout in stored.items():
        outcome, end = rollout.outcome, told.get(name)
        held = None if outcome is None else (outcome.status.value, outcome.origin.value, rollout.reward is None)
        said = None if end is None else (end["status"], end["origin"], end["reward"] is None)
        verdict.require(held == said, f"run.db says {held} of {name}, the ledger said {said}")
    names = [event.name for event in read_events(lab.folder)]
    verdict.require(
        names == [event.name for event in lab.told.events],
        f"run.db holds {len(names)} events of {len(lab.told.events)}, or in another order",
    )
