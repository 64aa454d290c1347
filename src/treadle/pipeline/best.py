"""The best of a run: the version that solved the largest share of tasks that it does not train on.

Those are the tasks of `validation` where a run has one, and then they alone decide: what is chosen by tasks does better
on them than it is. Else they are the held-out ones.

Which one that is, is written nowhere. It follows from the ledger's `evaluation.done`, one after the other, so it is as
durable as they are, and a run that goes on finds the same one. `Checkpoints.keep_best` keeps its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.pipeline.evaluation import Evaluation

UNTOUCHED = "untouched"
"""Label of the evaluation before anything is trained. No checkpoint holds that model, so it is never the best."""

VALIDATION = "validation"
"""Labels of evaluations that are there to choose a version begin with it."""


def best_of(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """The evaluation with the largest share of solved tasks, among equals that of the earliest version.

    None when no trained version was evaluated.
    """
    found = [evaluation for evaluation in evaluations if evaluation.label != UNTOUCHED]
    found = [evaluation for evaluation in found if evaluation.label.startswith(VALIDATION)] or found
    return max(found, key=lambda evaluation: (evaluation.overall.share, -evaluation.version), default=None)
