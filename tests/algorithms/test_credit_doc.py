"""docs/credit.md says of every rule what the rule says of itself."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.algorithms.rules import RULES
from treadle.algorithms.shared import SHARED

TEXT = (Path(__file__).parents[2] / "docs" / "credit.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for cells in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (group|batch) \| (\d) \| (.*?) \|$", TEXT, re.MULTILINE)
}


def test_the_table_has_every_rule() -> None:
    assert set(ROWS) == set(RULES) | {"tree_pg"}


def test_scope_notes_and_least_rollouts_are_those_of_the_rule() -> None:
    for name in RULES:
        rule, (_, needs, scope, least, _) = RULES[name](), ROWS[name]
        assert (name, scope, int(least)) == (name, rule.scope, rule.min_rollouts)
        assert set(re.findall(r"`(\w+)`", needs)) >= set(rule.needs)


def test_every_choice_for_shared_segments_is_explained() -> None:
    assert [name for name in SHARED if not re.search(rf"^\| `{name}`", TEXT, re.MULTILINE)] == []
