"""Random valid forests: forks, context breaks, failures, step rewards and demonstrations.

Drawn from a numpy generator and nothing else, so equal seeds give equal forests and a failing case can be named by
its seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treadle.core.outcome import CANCELLED, OK, Origin, Outcome, Status, limit, tool_timeout
from treadle.testing.forests import Node, grow
from treadle.trajectory.group import Group, Sink
from treadle.trajectory.segment import Author, Why

FAILURES = (
    Outcome(status=Status.ERROR, origin=Origin.INFRA, type="SandboxError", message="planted"),
    Outcome(status=Status.ERROR, origin=Origin.ENV, type="EnvError", message="planted"),
    Outcome(status=Status.ERROR, origin=Origin.GRADER, type="GraderError", message="planted"),
    CANCELLED,
)
ENDINGS = (OK, OK, limit("turns"), tool_timeout("planted"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a random tree grows. Probabilities are per place where the thing could happen."""

    rollouts: int = 4
    """Branches at the prompt; forks add more."""
    turns: int = 3
    """Most turns of a rollout."""
    tokens: int = 4
    """Most tokens of a segment."""
    vocabulary: int = 50
    fork: float = 0.3
    breaks: float = 0.2
    failure: float = 0.15
    step_reward: float = 0.3
    demonstration: float = 0.0
    """Chance that a branch at the prompt is demonstrated instead of sampled."""
    stop: float = 0.25
    """Chance that a rollout ends by itself after a turn."""
    versions: int = 2
    """Policy versions 0..versions-1 appear."""


def random_tree(rng: np.random.Generator, growth: Growth | None = None) -> Node:
    """A random valid tree: forks, context breaks, failures, step rewards and demonstrations as `growth` says."""
    return _Gardener(rng, growth or Growth()).tree()


def random_group(
    rng: np.random.Generator, growth: Growth | None = None, *, id: str = "g0", ticket: int = 0,
    sink: Sink | None = None,
) -> Group:
    """A random valid group."""
    return grow(random_tree(rng, growth), id=id, ticket=ticket, sink=sink).group


def random_groups(seed: int, count: int, growth: Growth | None = None, *, sink: Sink | None = None) -> list[Group]:
    """Several random groups; equal seeds give equal groups."""
    rng = np.random.default_rng(seed)
    return [random_group(rng, growth, id=f"g{i}", ticket=i, sink=sink) for i in range(count)]


class _Gardener:
    """Draws one tree."""

    def __init__(self, rng: np.random.Generator, growth: Growth) -> None:
        self._rng, self._growth, self._count = rng, growth, 0

    def tree(self) -> Node:
        g = self._growth
        authors = [Author.DEMO if self._chance(g.demonstration) else Author.POLICY for _ in range(g.rollouts)]
        return Node(
            name="prompt", author=Author.ENV, ids=self._tokens(),
            children=tuple(self._turn(author, turn=1, line=("prompt",)) for author in authors),
        )

    def _turn(self, author: Author, *, turn: int, line: tuple[str, ...]) -> Node:
        g, name, ids = self._growth, self._name("a"), self._tokens()
        last = turn >= g.turns or self._chance(g.stop)
        children = () if last else (self._answer(author, turn=turn, line=(*line, name)),)
        sampled = author is Author.POLICY
        return Node(
            name=name, author=author, ids=ids,
            logprobs=tuple(-self._rng.exponential(size=len(ids))) if sampled else (),
            versions=self._versions(len(ids)) if sampled else (),
            reward=self._reward() if last or self._chance(g.step_reward) else 0.0,
            end=self._ending() if last else None, state_key=f"s{self._rng.integers(3)}" if sampled else None,
            children=children,
        )

    def _answer(self, author: Author, *, turn: int, line: tuple[str, ...]) -> Node:
        g, name = self._growth, self._name("e")
        broken = self._chance(g.breaks)
        ends = self._chance(0.1)
        forks = 0 if ends else 1 + int(self._chance(g.fork)) + int(self._chance(g.fork / 2))
        return Node(
            name=name, author=Author.ENV, ids=self._tokens(), why=Why.COMPACT if broken else Why.TURN,
            context=line[int(self._rng.integers(len(line)))] if broken else None,
            reward=self._reward() if ends else 0.0, end=self._ending() if ends else None,
            children=tuple(self._turn(author, turn=turn + 1, line=(*line, name)) for _ in range(forks)),
        )

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _tokens(self) -> tuple[int, ...]:
        count = int(self._rng.integers(1, self._growth.tokens + 1))
        return tuple(int(i) for i in self._rng.integers(0, self._growth.vocabulary, size=count))

    def _versions(self, count: int) -> tuple[tuple[int, int], ...]:
        first = int(self._rng.integers(self._growth.versions))
        at = int(self._rng.integers(1, count + 1))
        later = min(first + 1, self._growth.versions - 1)
        return ((first, count),) if at == count or later == first else ((first, at), (later, count - at))

    def _reward(self) -> float:
        return float(np.round(self._rng.normal(), 3))

    def _ending(self) -> Outcome:
        pool = FAILURES if self._chance(self._growth.failure) else ENDINGS
        return pool[int(self._rng.integers(len(pool)))]

    def _chance(self, p: float) -> bool:
        return bool(self._rng.random() < p)
