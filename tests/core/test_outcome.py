"""The outcome table, row by row, and nothing outside it."""

from __future__ import annotations

from itertools import product

import pytest

from treadle.core.errors import GraderError, SandboxError
from treadle.core.outcome import CANCELLED, OK, TABLE, Origin, Outcome, Retry, Status, failure, limit, tool_timeout

ROWS = [
    (Status.OK, Origin.NONE, True, True, Retry.NO),
    (Status.TRUNCATED, Origin.LIMIT, True, True, Retry.NO),
    (Status.TIMEOUT, Origin.TOOL, True, True, Retry.NO),
    (Status.ERROR, Origin.ENV, False, False, Retry.RESET),
    (Status.ERROR, Origin.INFRA, False, False, Retry.INFRA),
    (Status.ERROR, Origin.GRADER, False, False, Retry.GRADING),
    (Status.CANCELLED, Origin.NONE, False, False, Retry.NO),
]


@pytest.mark.parametrize(("status", "origin", "scored", "trains", "retry"), ROWS)
def test_each_row_says_what_is_scored_trained_and_retried(
    status: Status, origin: Origin, scored: bool, trains: bool, retry: Retry
) -> None:
    outcome = Outcome(status=status, origin=origin)
    assert (outcome.scored, outcome.trains, outcome.rule.retry) == (scored, trains, retry)
    assert outcome.retryable == (retry in (Retry.RESET, Retry.INFRA))
    assert outcome.failed == (status is Status.ERROR)


def test_the_table_has_these_rows_and_no_other() -> None:
    assert set(TABLE) == {(status, origin) for status, origin, *_ in ROWS}


@pytest.mark.parametrize("pair", [p for p in product(Status, Origin) if p not in {(r[0], r[1]) for r in ROWS}])
def test_a_pair_outside_the_table_is_refused(pair: tuple[Status, Origin]) -> None:
    with pytest.raises(ValueError, match="not in the outcome table"):
        Outcome(status=pair[0], origin=pair[1])


def test_nothing_that_failed_is_ever_scored_or_trained() -> None:
    assert not any(rule.scored or rule.trains for (status, _), rule in TABLE.items() if status is Status.ERROR)


def test_the_ready_made_outcomes_stand_in_the_table() -> None:
    assert (OK.trains, CANCELLED.trains) == (True, False)
    assert limit("turns", "8 turns").origin is Origin.LIMIT
    assert tool_timeout("bash").trains


@pytest.mark.parametrize("origin", [Origin.ENV, Origin.INFRA, Origin.GRADER])
def test_a_failure_carries_the_class_and_the_first_line(origin: Origin) -> None:
    outcome = failure(origin, SandboxError("bwrap is missing\nsecond line"))
    assert (outcome.origin, outcome.type, outcome.message) == (origin, "SandboxError", "bwrap is missing")


def test_a_failure_without_words_has_an_empty_message() -> None:
    assert failure(Origin.GRADER, GraderError()).message == ""


def test_a_long_failure_message_is_cut() -> None:
    assert len(failure(Origin.ENV, RuntimeError("x" * 10_000)).message) == 400
