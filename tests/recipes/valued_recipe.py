"""Recipes of a test whose rules and losses need notes: a value head, a reference, reference answers."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from words_recipe import Words, words

from treadle import Algorithm, Forest, Recipe
from treadle.algorithms.credit import TokenCredit
from treadle.algorithms.kl import Kl
from treadle.learner.config import ValueConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The return minus the value before each token."""

    name: ClassVar[str] = "baseline"
    needs: ClassVar[frozenset[str]] = frozenset({"value"})
    scope: ClassVar[str] = "group"
    min_rollouts: ClassVar[int] = 1

    def __call__(self, forest: Forest) -> TokenCredit:
        returns = forest.spread(forest.leaf_mean(forest.returns))
        value = forest.note("value")
        return TokenCredit(
            advantage=np.nan_to_num(returns - value), returns=np.where(forest.spread(forest.action), returns, np.nan)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely(Baseline):
    """Pays for making the reference answer likely."""

    name: ClassVar[str] = "likely"
    needs: ClassVar[frozenset[str]] = frozenset({"answer_prob"})

    def __call__(self, forest: Forest) -> TokenCredit:
        assert np.isfinite(forest.note("answer_prob")).all()
        return TokenCredit(advantage=forest.note("answer_prob") + 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lucky(Baseline):
    """Needs what nobody computes."""

    name: ClassVar[str] = "lucky"
    needs: ClassVar[frozenset[str]] = frozenset({"luck"})


class Answered(Words):
    """Every task has a reference answer."""

    def task(self, split, index):
        return replace(super().task(split, index), answer="ok" if split == "train" else "")


def valued() -> Recipe:
    """A token-level value head, beside a KL penalty in the loss."""
    made = words(epochs=1, updates=4, evaluation=0)
    return replace(
        made, algorithm=Algorithm(rule=Baseline(), kl=Kl(coefficient=0.05)),
        learner=replace(made.learner, value=ValueConfig(lr=1e-2)),
    )


def likely() -> Recipe:
    return replace(words(Answered(), epochs=0, evaluation=0), algorithm=Algorithm(rule=Likely()))


def unanswered() -> Recipe:
    return replace(words(epochs=0, evaluation=0), algorithm=Algorithm(rule=Likely()))
