"""Printing rollouts: turns as text, with marks for what the policy sampled. Model output is untrusted: escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.observability.facts import printable
from treadle.trajectory.group import Group, Rollout
from treadle.trajectory.segment import Author, Segment

Decode = Callable[[Sequence[int]], str]
MARKS = {Author.POLICY: "trained", Author.DEMO: "demonstrated", Author.ENV: "context"}


def rollout_lines(group: Group, rollout: Rollout, decode: Decode, *, tokens: bool = False) -> list[str]:
    """A rollout as lines: head, one block per segment, rewards and outcome."""
    rewards: dict[str, list[str]] = {}
    for record in group.records:
        if record.rollout == rollout.id:
            rewards.setdefault(record.segment, []).append(f"{record.name}={record.value:g}")
    lines = [f"rollout {rollout.id}  task {group.key.task}  family {group.key.family or '-'}  split {group.key.split}"]
    for segment in _segments(group, rollout):
        lines += ["", _head(segment, rewards.get(segment.id, []))]
        lines += _table(segment, decode) if tokens else [_indent(printable(decode(segment.ids.tolist())))]
    return [*lines, "", _ending(rollout)]


def tree_lines(group: Group) -> list[str]:
    """A group as a tree of rollouts, each below the one that it was forked from."""
    key, rollouts = group.key, sorted(group.rollouts.values(), key=lambda r: (r.index, r.attempt))
    probes = sum(rollout.probe for rollout in rollouts)
    lines = [
        f"group {key.id}  task {key.task}  family {key.family or '-'}  split {key.split}  "
        f"{len(rollouts) - probes} rollouts, {probes} probes"
    ]
    for rollout in rollouts:
        if rollout.forked_from is None:
            lines += _branch(group, rollout, rollouts, "")
    return [printable(line) for line in lines]


def _branch(group: Group, rollout: Rollout, rollouts: Sequence[Rollout], indent: str) -> list[str]:
    """One rollout and what was forked from it, the latest forks last."""
    own = [segment for segment in group.segments.values() if segment.rollout == rollout.id and segment.is_action]
    turns = f"turns {own[0].turn}-{own[-1].turn}" if own else "no turn of its own"
    kind = "  probe" if rollout.probe else ""
    where = "" if rollout.forked_at is None else f"before turn {_turn(group, rollout)}  "
    lines = [f"{indent}{where}{rollout.id}{kind}  {turns}, {sum(map(len, own))} tokens  {_ending(rollout)}"]
    forks = [fork for fork in rollouts if fork.forked_from == rollout.id]
    for fork in sorted(forks, key=lambda fork: (_turn(group, fork), fork.index, fork.attempt)):
        lines += _branch(group, fork, rollouts, indent + "   ")
    return lines


def _turn(group: Group, fork: Rollout) -> int:
    """The turn that a fork began with."""
    assert fork.forked_at is not None
    at = group.segments[fork.forked_at]
    return 0 if at.rollout is None else at.turn + 1


def _segments(group: Group, rollout: Rollout) -> list[Segment]:
    seen: dict[str, Segment] = {}
    for leaf in rollout.leaves:
        for segment in group.path(leaf):
            seen.setdefault(segment.id, segment)
    return list(seen.values())


def _head(segment: Segment, rewards: list[str]) -> str:
    parts = [f"-- turn {segment.turn}", MARKS[segment.author], f"{len(segment)} tokens"]
    if segment.logprobs is not None:
        versions = ", ".join(f"v{version} x {count}" for version, count in segment.versions)
        parts += [versions, f"mean log-prob {segment.logprobs.mean():.3f}"]
    if segment.why.breaks:
        parts.append(f"context break: {segment.why.value}")
    return "  ".join(parts + rewards)


def _table(segment: Segment, decode: Decode) -> list[str]:
    versions = [version for version, count in segment.versions for _ in range(count)]
    lines = [f"   {'id':>6}  {'log-prob':>8}  {'entropy':>7}  {'version':>7}  mark  text"]
    for i, token in enumerate(segment.ids.tolist()):
        logprob = "" if segment.logprobs is None else f"{segment.logprobs[i]:.3f}"
        entropy = "" if segment.entropy is None else f"{segment.entropy[i]:.3f}"
        mark = "*" if segment.is_action else "."
        version = str(versions[i]) if versions else ""
        text = printable(decode([token])).replace("\n", "\\n")
        lines.append(f"   {token:>6}  {logprob:>8}  {entropy:>7}  {version:>7}  {mark:>4}  {text}")
    return lines


def _indent(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.split("\n"))


def _ending(rollout: Rollout) -> str:
    if rollout.outcome is None:
        return "not ended"
    reward = "not scored" if rollout.reward is None else f"reward {rollout.reward:g}"
    why = f", {rollout.outcome.type}" if rollout.outcome.type else ""
    message = f": {printable(rollout.outcome.message)}" if rollout.outcome.message else ""
    return f"ended {rollout.outcome.status.value} ({rollout.outcome.origin.value}{why}), {reward}{message}"
