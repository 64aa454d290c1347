"""The annotate stage: columns that a rule, a loss or a correction needs, computed before credit is assigned.

    new, prox       log-probs of actions under the weights that the update begins with: one forward for both
    entropy         of what might have stood in each place of an action, in nats: from the same forward
    value           the value before every token, by the value head; with it `value_after`, the value behind it, so that
                    a rollout that was cut off can be bootstrapped. At the level `turn` `value` stands on the first
                    token of each action alone
    ref             log-probs of actions under the reference policy
    answer_prob     log-prob of the task's reference answer, had it been said right behind a segment: the same number on
                    all tokens of the segment

Everything is computed over packs, without gradients, and on the tokens as they were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treadle.algorithms.objective import COLUMNS
from treadle.core.errors import ConfigError
from treadle.core.ports import Ids
from treadle.learner.reference import Reference
from treadle.learner.scoring import Reader, Scorer
from treadle.learner.value import ValueHead, at_level
from treadle.trajectory.forest import Column, Forest, Index
from treadle.trajectory.segment import Author, Segment

Answers = Callable[[str], Ids | None]
"""Task id to the tokens of its reference answer; None when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotator:
    """What columns can be made of."""

    scorer: Scorer
    value: ValueHead | None = None
    reference: Reference | None = None
    answers: Answers | None = None

    def annotate(self, forest: Forest, columns: Collection[str], *, budget_tokens: int) -> Forest:
        """The forest with these notes. Raises ConfigError for a column that nobody can compute."""
        notes: dict[str, Column] = {}
        if unknown := sorted(set(columns) - COLUMNS):
            known = ", ".join(sorted(COLUMNS))
            raise ConfigError(f"column {unknown[0]!r}: nobody computes it, expected one of {known}")
        if {"prox", "new", "entropy"} & set(columns):
            notes |= self._own(forest, columns, budget_tokens)
        if "value" in columns:
            notes |= self._values(forest, budget_tokens)
        if "ref" in columns:
            if self.reference is None:
                raise ConfigError("column 'ref': the learner has no reference policy; give it one")
            notes["ref"] = self.reference.logprobs(forest, budget_tokens=budget_tokens)
        if "answer_prob" in columns:
            notes["answer_prob"] = self._answers(forest, budget_tokens)
        return replace(forest, notes={**forest.notes, **notes})

    def _own(self, forest: Forest, columns: Collection[str], budget_tokens: int) -> dict[str, Column]:
        readers: dict[str, Reader] = {}
        if {"prox", "new"} & set(columns):
            readers["logp"] = self.scorer.read_logprobs
        if "entropy" in columns:
            readers["entropy"] = self.scorer.read_entropies
        found = self.scorer.scan(forest, readers, budget_tokens=budget_tokens)
        return {name: found.get(name, found.get("logp", np.empty(0))) for name in columns if name in (
            "prox", "new", "entropy"
        )}

    def _values(self, forest: Forest, budget_tokens: int) -> dict[str, Column]:
        head = self.value
        if head is None:
            raise ConfigError("column 'value': the learner has no value head; set learner.value.level=token or turn")
        readers = {"value": head.read_before, "value_after": head.read_after}
        found = self.scorer.scan(forest, readers, budget_tokens=budget_tokens, everywhere=True)
        return {**found, "value": at_level(found["value"], forest, head.config.level)}

    def _answers(self, forest: Forest, budget_tokens: int) -> Column:
        said = [self._answer(key.task) for key in forest.keys]
        asked = _with_answers(forest, said)
        logp = self.scorer.logprobs(asked, budget_tokens=budget_tokens)
        per_row = np.add.reduceat(np.nan_to_num(logp, nan=0.0), asked.start[:-1])
        return forest.spread(per_row[len(forest) :])

    def _answer(self, task: str) -> Ids:
        found = None if self.answers is None else self.answers(task)
        if found is None:
            raise ConfigError(
                f"column 'answer_prob': task {task} has no reference answer; give its Task an `answer`, or choose a "
                "rule that needs none"
            )
        return found


def _with_answers(forest: Forest, said: Sequence[Ids]) -> Forest:
    """The forest with one more segment behind each: its group's answer, the only ones that count as actions."""
    n = len(forest)
    rows: Index = np.arange(n)
    answers = [
        Segment(
            id=f"{segment.id}/answer", group=segment.group, rollout=segment.rollout, author=Author.DEMO,
            ids=said[group], parent=segment.id, after=segment.id,
        )
        for segment, group in zip(forest.segments, forest.group.tolist(), strict=True)
    ]
    none = np.zeros(n, dtype=bool)
    return replace(
        forest, segments=(*forest.segments, *answers), parent=np.concatenate([forest.parent, rows]),
        after=np.concatenate([forest.after, rows]), group=np.tile(forest.group, 2),
        length=np.concatenate([forest.length, [len(s) for s in answers]]).astype(np.int64),
        action=np.concatenate([none, ~none]), policy=np.tile(none, 2), reward=np.zeros(2 * n),
        turn=np.tile(forest.turn, 2), probed=np.full(2 * n, np.nan), notes={},
    )
