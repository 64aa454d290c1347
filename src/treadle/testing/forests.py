"""Forests written by hand as trees of `Node`, to test credit, packing and stores with.

A `Node` is one segment and what follows it in time. `grow` plays such a tree through the real door, `Group`: one
rollout per ending, depth first, so rows stand in the order in which the tree is written. Segments that several
rollouts share belong to the first that reached them; a reward on such a segment is paid by the first rollout through
it that trains, so a failed sibling takes nothing away from the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from treadle.core.outcome import OK, Outcome
from treadle.core.ports import Completion, Finish, Ids
from treadle.trajectory.group import Group, GroupKey, Sink
from treadle.trajectory.segment import Author, Segment, Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One segment of a tree to grow."""

    name: str
    """Unique in the tree."""
    author: Author
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """Per token; empty means -1 each where the author is the policy."""
    versions: tuple[tuple[int, int], ...] = ()
    """Run-length policy versions; empty means version 0 throughout."""
    reward: float = 0.0
    """Training reward of this segment; on an observation it moves to the action before it."""
    end: Outcome | None = None
    """How the rollout that stops here ends; None means OK. Only read on nodes without children."""
    why: Why = Why.TURN
    context: str | None = None
    """Name of the earlier node whose context this one continues; None means the node before it."""
    state_key: str | None = None
    children: tuple[Node, ...] = ()
    """What happened next; several children are forks."""

    def walk(self) -> Iterator[Node]:
        """This node and all below it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A group and where its named segments are."""

    group: Group
    names: dict[str, Segment]
    """Segment of each node, by the node's name."""


def grow(root: Node, *, id: str = "g0", ticket: int = 0, sink: Sink | None = None) -> Grown:
    """Play the tree under `root`, the shared prompt, into a new group."""
    group = Group(
        GroupKey(id=id, ticket=ticket, task=f"task-{ticket}", family="planted", split="train", admitted_version=0),
        sink=sink,
    )
    names: dict[str, Segment] = {root.name: group.prompt(_ids(root.ids))}
    through: dict[str, list[str]] = {}
    endings: list[tuple[str, Outcome]] = []
    for index, path in enumerate(_paths(root)):
        rollout = group.begin(index).id
        turn = 0
        for before, node in pairwise(path):
            turn += before is not root and before.author is Author.ENV and node.author is not Author.ENV
            through.setdefault(node.name, []).append(rollout)
            if node.name not in names:
                names[node.name] = _append(group, rollout, node, names=names, after=names[before.name], turn=turn)
        endings.append((rollout, path[-1].end or OK))
    trains = {rollout for rollout, outcome in endings if outcome.trains}
    for node in root.walk():
        if node.reward:
            takers = through[node.name]
            payer = next((r for r in takers if r in trains), takers[0])
            group.pay(payer, "step" if node.children else "score", node.reward, on=names[node.name])
    for rollout, outcome in endings:
        group.end(rollout, outcome, seconds={"generate": 0.5, "env": 0.25})
    return Grown(group=group, names=names)


def hand_tree(*, sink: Sink | None = None) -> Grown:
    """Prompt; a1 -> e1 -> {a2 (R=1), a3 (R=0)}; b1 (R=0). Lengths prompt 3, a1 2, e1 2, a2 2, a3 1, b1 2."""
    a2 = action("a2", 2, reward=1.0, state_key="s2")
    a3 = action("a3", 1, state_key="s2")
    a1 = action("a1", 2, observation("e1", 2, a2, a3), state_key="s1")
    b1 = action("b1", 2, state_key="s1")
    return grow(observation("prompt", 3, a1, b1), id="hand", sink=sink)


def action(name: str, length: int, *children: Node, reward: float = 0.0, state_key: str | None = None) -> Node:
    """A sampled segment of `length` tokens."""
    return Node(
        name=name, author=Author.POLICY, ids=tuple(range(10, 10 + length)), reward=reward, state_key=state_key,
        children=children,
    )


def observation(name: str, length: int, *children: Node) -> Node:
    """An environment segment of `length` tokens."""
    return Node(name=name, author=Author.ENV, ids=tuple(range(1, 1 + length)), children=children)


# -- inside ----------------------------------------------------------------------------------------------------


def _append(
    group: Group, rollout: str, node: Node, *, names: dict[str, Segment], after: Segment, turn: int
) -> Segment:
    ids = _ids(node.ids)
    if node.author is Author.DEMO:
        return group.demonstrated(rollout, ids, after=after, turn=turn)
    if node.author is Author.ENV:
        parent = names[node.context] if node.context is not None else None
        return group.observed(rollout, ids, after=after, turn=turn, why=node.why, parent=parent)
    n = len(ids)
    versions = node.versions or ((0, n),)
    completion = Completion(
        ids=ids, logprobs=np.array(node.logprobs or (-1.0,) * n, dtype=np.float32),
        entropy=np.full(n, 0.5, dtype=np.float32), versions=versions, kv_version=versions[0][0], finish=Finish.STOP,
    )
    return group.sampled(rollout, completion, after=after, turn=turn, state_key=node.state_key)


def _paths(root: Node) -> Iterator[list[Node]]:
    """Root-to-ending paths, depth first."""
    if not root.children:
        yield [root]
    for child in root.children:
        for rest in _paths(child):
            yield [root, *rest]


def _ids(ids: tuple[int, ...]) -> Ids:
    return np.array(ids, dtype=np.int32)
