"""Known gradients: decision problems so small that every tree that can be played is enumerated.

A problem is a tree of turns. A turn says which actions there are, what each pays and what comes next, and how often the
turn is played from where it is reached: its fan-out, fixed before anything is sampled there. The policy is a table: the
chance of a token depends on the token before it, with two choices and one logit where there is a choice at all.

    Problem --every tree, with its probability--> Forest -> rule -> pack -> loss -> backward --mean--> E[gradient]
       `----the value, differentiated------------------------------------------------------------> true gradient

So a rule is judged by what the library makes of it, without the noise of sampling. Trees that differ in the order of
siblings only are one tree, with the probability of all of them: no rule may tell them apart (`check_credit`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, count, pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from treadle.algorithms.aggregation import Aggregation, SeqSumConst
from treadle.algorithms.credit import CreditRule, assign
from treadle.algorithms.losses import Loss, PpoClip
from treadle.learner.pack import pack
from treadle.testing.forests import Node, grow
from treadle.trajectory.forest import Column, Forest
from treadle.trajectory.segment import Author


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One action of a turn."""

    ids: tuple[int, ...]
    """Its tokens. No token stands in two places of a problem but at the beginning of options of one turn."""
    reward: float = 0.0
    then: Turn | None = None
    """What comes next; None ends the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A state in which the policy acts."""

    state: int
    """Token by which the world shows it."""
    options: tuple[Option, ...]
    fan: int = 1
    """How often it is played from where it is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A decision problem and the policy that is judged in it."""

    name: str
    root: Turn
    logits: dict[int, float] = field(default_factory=dict)
    """Log-odds of the later of the two tokens that may follow a token; 0 where none is given."""


@dataclass(frozen=True, slots=True)
class Play:
    """One option taken, and all plays of what came next."""

    option: Option
    below: tuple[Play, ...] = ()


class Table(nn.Module):
    """The policy of a problem: log-probs of a token after another one."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        follow: dict[int, set[int]] = {}
        for turn in _turns(problem.root):
            for option in turn.options:
                for before, after in pairwise((turn.state, *option.ids)):
                    follow.setdefault(before, set()).add(after)
        assert all(len(tokens) <= 2 for tokens in follow.values()), "a token has at most two that follow it"
        size = 1 + max({*follow, *(token for tokens in follow.values() for token in tokens)})
        sign = torch.zeros(size, size, dtype=torch.float64)
        for before, tokens in follow.items():
            if len(tokens) == 2:
                sign[before, min(tokens)], sign[before, max(tokens)] = -1.0, 1.0
        self.sign: Tensor
        self.register_buffer("sign", sign)
        self.logits = nn.Parameter(torch.tensor([problem.logits.get(i, 0.0) for i in range(size)], dtype=torch.float64))
        self.chosen = sorted(before for before, tokens in follow.items() if len(tokens) == 2)
        """Tokens after which there is a choice: the K logits that a gradient is told for."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Log-probs of `after` [E] behind `before` [E]."""
        sign = self.sign[before, after]
        return torch.where(sign == 0, 0.0, logsigmoid(sign * self.logits[before]))

    def logprobs(self, turn: Turn, option: Option) -> Tensor:
        """[n] of an option's tokens."""
        ids = torch.tensor((turn.state, *option.ids))
        out: Tensor = self(ids[:-1], ids[1:])
        return out

    def gradient(self) -> Column:
        """[K] of what was last differentiated."""
        assert self.logits.grad is not None
        return self.logits.grad[self.chosen].numpy().copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What a rule's gradient is in the mean, beside what it should be. Columns are [K], one number per logit."""

    expected: Column
    true: Column
    sd: Column
    """Standard deviation over trees: what one update of one group is off by."""

    @property
    def ratios(self) -> Column:
        """1 for each logit when there is no bias."""
        return self.expected / self.true

    @property
    def bias(self) -> float:
        """Largest distance of a ratio from 1."""
        return float(np.abs(self.ratios - 1).max())

    @property
    def cosine(self) -> float:
        """1 when the mean gradient has the true direction, whatever its length; 0 when there is none."""
        length = float(np.linalg.norm(self.expected) * np.linalg.norm(self.true))
        return float(self.expected @ self.true) / length if length else 0.0

    @property
    def turned(self) -> Column:
        """The ratios with the best common factor taken out: what no learning rate mends."""
        scale = float(self.expected @ self.true / (self.true @ self.true))
        return np.asarray(self.ratios / scale) if scale else self.ratios


def two_turn() -> Problem:
    """Four root actions; four children behind the first action, one behind the second."""
    first = Turn(state=3, fan=4, options=(Option(ids=(5,), reward=0.2), Option(ids=(6,), reward=0.6)))
    second = Turn(state=4, options=(Option(ids=(7,), reward=0.5), Option(ids=(8,), reward=0.9)))
    root = Turn(state=0, fan=4, options=(Option(ids=(1,), then=first), Option(ids=(2,), then=second)))
    return Problem(name="two_turn", root=root, logits={3: _logit(0.4), 4: _logit(0.6)})


def three_turn() -> Problem:
    """A single root action, up to three turns, actions of one and two tokens, a reward on the way."""
    deep = Turn(state=11, fan=2, options=(Option(ids=(13,), reward=0.1), Option(ids=(14,), reward=0.4)))
    late = Turn(state=12, options=(Option(ids=(17,), reward=0.9), Option(ids=(18,), reward=0.2)))
    left = Turn(state=3, fan=3, options=(
        Option(ids=(5,), then=deep), Option(ids=(6, 15), reward=0.3), Option(ids=(6, 16), then=late),
    ))
    last = Turn(state=19, fan=2, options=(Option(ids=(20,), reward=1.0), Option(ids=(21,), reward=0.4)))
    right = Turn(state=4, options=(Option(ids=(7,), reward=0.2), Option(ids=(8,), then=last)))
    root = Turn(state=0, options=(
        Option(ids=(1,), then=left), Option(ids=(2, 9), reward=0.3, then=right), Option(ids=(2, 10)),
    ))
    return Problem(name="three_turn", root=root, logits={0: _logit(0.4), 2: _logit(0.3), 3: _logit(0.6), 19: 0.5})


# -- trees -----------------------------------------------------------------------------------------------------


def every_tree(problem: Problem, table: Table) -> list[tuple[float, Node]]:
    """All trees with their probabilities, which sum to 1."""
    found = batches(every_play(problem.root, table), problem.root.fan)
    return [(p, tree(problem.root, plays, table)) for p, plays in found]


def every_play(turn: Turn, table: Table) -> list[tuple[float, Play]]:
    """All that may come of taking one action, with probabilities."""
    out: list[tuple[float, Play]] = []
    for option in turn.options:
        p = math.exp(float(table.logprobs(turn, option).detach().sum()))
        if option.then is None:
            out.append((p, Play(option)))
        else:
            below = batches(every_play(option.then, table), option.then.fan)
            out += [(p * q, Play(option, plays)) for q, plays in below]
    return out


def batches(plays: Sequence[tuple[float, Play]], n: int) -> list[tuple[float, tuple[Play, ...]]]:
    """All sets of n independent plays, whatever their order, with probabilities."""
    out: list[tuple[float, tuple[Play, ...]]] = []
    for chosen in combinations_with_replacement(range(len(plays)), n):
        orders = math.factorial(n) / math.prod(map(math.factorial, Counter(chosen).values()))
        out.append((orders * math.prod(plays[i][0] for i in chosen), tuple(plays[i][1] for i in chosen)))
    return out


def drawn_tree(problem: Problem, table: Table, rng: np.random.Generator) -> Node:
    """One tree, sampled."""
    return tree(problem.root, _drawn(problem.root, table, rng), table)


def tree(turn: Turn, plays: Sequence[Play], table: Table) -> Node:
    """The tree in which these plays of a turn were made, to `grow`."""
    numbers = count()

    def shown(turn: Turn, plays: Sequence[Play]) -> Node:
        children = tuple(taken(turn, play) for play in plays)
        return Node(name=f"e{next(numbers)}", author=Author.ENV, ids=(turn.state,), children=children)

    def taken(turn: Turn, play: Play) -> Node:
        option = play.option
        return Node(
            name=f"a{next(numbers)}", author=Author.POLICY, ids=option.ids, reward=option.reward,
            logprobs=tuple(table.logprobs(turn, option).tolist()), state_key=f"s{turn.state}",
            children=() if option.then is None else (shown(option.then, play.below),),
        )

    return shown(turn, plays)


# -- gradients -------------------------------------------------------------------------------------------------


def measured(
    rule: CreditRule, problem: Problem, *, aggregation: Aggregation | None = None, loss: Loss | None = None,
    trees: Sequence[tuple[float, Node]] | None = None,
) -> Measured:
    """The mean over all trees of the gradient that the library makes, as ascent, beside the true one.

    The aggregation is a constant denominator of 1 unless told. `trees` replaces those of the problem.
    """
    table = Table(problem)
    chosen = aggregation or SeqSumConst(constant=1.0)
    expected, squares = np.zeros(len(table.chosen)), np.zeros(len(table.chosen))
    for p, grown in every_tree(problem, table) if trees is None else trees:
        found = gradient([grown], table, rule, aggregation=chosen, loss=loss or PpoClip())
        expected += p * found
        squares += p * found**2
    sd = np.sqrt(np.maximum(squares - expected**2, 0.0))
    return Measured(expected=expected, true=true_gradient(problem, table), sd=sd)


def gradient(
    trees: Sequence[Node], table: Table, rule: CreditRule, *, aggregation: Aggregation, loss: Loss
) -> Column:
    """[K] the ascent direction of one update on these groups, through forest, rule, packs and autograd."""
    forest = Forest.of([grow(root, id=f"g{i}", ticket=i).group for i, root in enumerate(trees)])
    collapsed, denominator = assign(forest, rule, aggregation)
    table.logits.grad = torch.zeros_like(table.logits)
    for batch in pack(forest, collapsed, denominator=denominator, budget_tokens=4096):
        loss(table(batch.ids[batch.src], batch.ids[batch.tgt]), batch.terms).backward()  # type: ignore[no-untyped-call]
    return -table.gradient()


def true_gradient(problem: Problem, table: Table) -> Column:
    """[K] of the expected return."""

    def value(turn: Turn) -> Tensor:
        terms = [
            table.logprobs(turn, o).sum().exp() * (o.reward + (0.0 if o.then is None else value(o.then)))
            for o in turn.options
        ]
        return torch.stack(terms).sum()

    table.logits.grad = None
    value(problem.root).backward()  # type: ignore[no-untyped-call]
    return table.gradient()


def check_unbiased(rule: CreditRule, *, aggregation: Aggregation | None = None, tolerance: float = 1e-6) -> None:
    """Raise AssertionError where the rule's mean gradient is not the policy's, in a problem of two or three turns."""
    for problem in (two_turn(), three_turn()):
        found = measured(rule, problem, aggregation=aggregation)
        if not found.bias <= tolerance:
            raise AssertionError(
                f"rule {rule.name}, {problem.name}: E[gradient] / true is {np.round(found.ratios, 4).tolist()}, "
                "expected 1 for every logit"
            )


# -- inside ----------------------------------------------------------------------------------------------------


def _drawn(turn: Turn, table: Table, rng: np.random.Generator) -> tuple[Play, ...]:
    weights = np.exp([float(table.logprobs(turn, option).detach().sum()) for option in turn.options])
    picks = rng.choice(len(weights), size=turn.fan, p=weights / weights.sum())
    taken = [turn.options[i] for i in picks]
    return tuple(Play(o, () if o.then is None else _drawn(o.then, table, rng)) for o in taken)


def _turns(root: Turn) -> Iterator[Turn]:
    yield root
    for option in root.options:
        if option.then is not None:
            yield from _turns(option.then)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
