"""What a rule needs of a forest, taken from it or refused in one line: nothing that is missing becomes a zero."""

from __future__ import annotations

import numpy as np

from treadle.trajectory.forest import Column, Forest, Index


def lacks(rule: str, *, got: str, expected: str, todo: str) -> ValueError:
    """The error of a rule that cannot judge this forest."""
    return ValueError(f"algorithm.rule={rule}: got {got}, expected {expected}; {todo}")


def noted(forest: Forest, name: str, *, rule: str, at: Index) -> Column:
    """[len(at)] the note of this name on these tokens. Raises ValueError when it is not on every one of them."""
    if name not in forest.notes:
        held = ", ".join(sorted(forest.notes)) or "none"
        raise lacks(
            rule, got=f"a forest with the columns: {held}", expected=f"{name!r} on every token that the rule looks at",
            todo=_WHERE.get(name, f"whoever calls the rule must annotate {name!r}"),
        )
    column = forest.notes[name][at]
    missing = int((~np.isfinite(column)).sum())
    if missing:
        raise lacks(
            rule, got=f"{missing} of {len(at)} tokens without {name!r}", expected="a finite number on each",
            todo=_WHERE.get(name, f"whoever calls the rule must annotate {name!r}"),
        )
    return column


_WHERE = {
    "value": "set up a value head for the learner, or choose a rule without one",
    "ref": "give the run a reference policy, or set algorithm.rule.beta=0",
    "answer_prob": "give the tasks a reference answer, or choose a rule without one",
}
"""Where a note comes from, for who has none."""
