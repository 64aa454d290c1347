"""Generalised advantage estimation with a learned value, over tokens or over actions.

Both walk time from the end and see actions only: what the world said between two of them has no step of its own, so a
value there is never read and a reward is never lost. Where the tree forks, the next state's value and advantage are
means over the branches. An ending by a limit was not the policy's wish: what would have followed is worth the value of
the state at the end (note `value_after`), or, where nobody says that, of the last state that has one. Both give what a
value head should have said (`returns` = advantage + value).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.algorithms.credit import Gives, Scope, TokenCredit
from treadle.algorithms.demanded import noted
from treadle.algorithms.turns import Turns
from treadle.core.errors import ConfigError
from treadle.core.outcome import Status
from treadle.trajectory.forest import Column, Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimated:
    """What both rules say of themselves, and what they are set with."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"value"})
    scope: ClassVar[Scope] = "group"
    gives: ClassVar[Gives] = "token"
    min_rollouts: ClassVar[int] = 1

    gamma: float = 1.0
    """Discount per step: an action token (`gae`), or an action (`turn_gae`)."""
    lam: float = 0.95
    """0 trusts the next value alone, 1 the rewards alone."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"{self.name}.gamma: got {self.gamma}, expected 0 < gamma <= 1")
        if not 0 <= self.lam <= 1:
            raise ConfigError(f"{self.name}.lam: got {self.lam}, expected 0 <= lam <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae(_Estimated):
    """d_j = r_j + gamma V_{j+1} - V_j, A_j = d_j + gamma lam A_{j+1}, over action tokens (1506.02438).

    V on a token is the value of the state before it.
    """

    name: ClassVar[str] = "gae"

    def __call__(self, forest: Forest) -> TokenCredit:
        """Advantage and return of every token. Raises ValueError when an action token has no value."""
        own = np.flatnonzero(np.repeat(forest.action, forest.length))
        value = np.zeros(forest.tokens)
        value[own] = noted(forest, "value", rule=self.name, at=own)
        reward = np.zeros(forest.tokens)
        reward[forest.start[1:][forest.action] - 1] = forest.reward[forest.action]
        end = Turns.of(forest).end[forest.rollout_leaf]
        beyond = _beyond(forest, self.name, np.where(end >= 0, np.append(value, 0.0)[forest.start[end + 1] - 1], 0.0))
        advantage = token_gae(forest, reward, value=value, gamma=self.gamma, lam=self.lam, beyond=beyond)
        returns = np.full(forest.tokens, np.nan)
        returns[own] = advantage[own] + value[own]
        return TokenCredit(advantage=advantage, returns=returns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGae(_Estimated):
    """The same with an action as one step: V on its first token, its whole reward (2504.20073 has the idea).

    All tokens of an action have its advantage; the value head learns at first tokens.
    """

    name: ClassVar[str] = "turn_gae"

    def __call__(self, forest: Forest) -> TokenCredit:
        """Advantage of every token, return of every first one. Raises ValueError when one of those has no value."""
        turns = Turns.of(forest)
        first = forest.start[turns.row]
        value = noted(forest, "value", rule=self.name, at=first)
        beyond = _beyond(forest, self.name, np.append(value, 0.0)[turns.last])
        known, skip = np.zeros(len(forest)), np.ones(len(forest))
        known[turns.row], skip[turns.row] = value, 0.0
        following = forest.fold(known, factor=skip, ends=beyond)[1][turns.row]
        advantage = turns.togo(turns.reward + self.gamma * following - value, self.gamma * self.lam)
        returns = np.full(forest.tokens, np.nan)
        returns[first] = advantage + value
        return TokenCredit(advantage=forest.spread(turns.rows(advantage)), returns=returns)


def _beyond(forest: Forest, rule: str, last: Column) -> Column:
    """[R] what follows each rollout: 0, but for those that a limit cut off. `last` [R] stands in for `value_after`."""
    ended = [r.outcome is not None and r.outcome.status is Status.TRUNCATED for r in forest.rollouts]
    cut_off = np.array(ended, dtype=bool)
    worth = last.copy()
    if "value_after" in forest.notes:
        at = forest.start[1:][forest.rollout_leaf[cut_off]] - 1
        worth[cut_off] = noted(forest, "value_after", rule=rule, at=at)
    return np.where(cut_off, worth, 0.0)


def token_gae(
    forest: Forest, reward: Column, *, value: Column, gamma: float, lam: float, beyond: Column | None = None
) -> Column:
    """[T] advantages over action tokens in time, 0 on the world's; `reward` and `value` are [T].

    `beyond` [R] is what the state after a rollout's end is worth; None is 0 for all.
    """
    children = np.maximum(forest.children, 1.0).tolist()
    next_value = (np.zeros(len(forest)) if beyond is None else forest.at_leaves(beyond)).tolist()
    next_advantage = [0.0] * len(forest)
    rewards, values, out = reward.tolist(), value.tolist(), [0.0] * forest.tokens
    start, acts, after = forest.start.tolist(), forest.action.tolist(), forest.after.tolist()
    for row in range(len(forest) - 1, -1, -1):
        v, a = next_value[row] / children[row], next_advantage[row] / children[row]
        if acts[row]:
            for t in range(start[row + 1] - 1, start[row] - 1, -1):
                a = rewards[t] + gamma * v - values[t] + gamma * lam * a
                v, out[t] = values[t], a
        if after[row] >= 0:
            next_value[after[row]] += v
            next_advantage[after[row]] += a
    return np.array(out, dtype=np.float64)
