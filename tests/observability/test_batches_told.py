"""What became of groups, rollouts and tasks, in lines and in the report; trained tokens by age."""

import pytest

from treadle.core.events import Event
from treadle.observability import PlainLines, Report
from treadle.observability.tables import ages, curriculum, tally


def event(name="update.done", **values):
    facts = {key.replace("__", "."): value for key, value in values.items()}
    return Event(name=name, at=0.0, values=facts)


def line(told):
    said = []
    PlainLines(said.append).emit(told)
    return said[0]


COUNTED = {
    "dropped__zero_variance": 2, "dropped__overlong": 1, "masked__overlong": 5, "masked__void_turn": 1,
    "skipped_tasks": 7, "pools__unplayed": 0, "pools__hopeless": 3, "pools__mixed": 4, "pools__mastered": 2,
}  # fmt: skip


def test_a_line_says_why_groups_were_dropped_and_what_was_left_out():
    assert line(event(update=1, updates=9, groups=5, dropped=3, **COUNTED)).endswith(
        "  dropped: zero_variance 2, overlong 1  rollouts left out: overlong 5, void_turn 1"
        "  tasks passed over: 7  kinds: hopeless 3, mixed 4, mastered 2"
    )


def test_tokens_that_were_too_old_to_train_are_said_where_there_are_any(tmp_path):
    old = event(update=2, stale_tokens=30)
    assert line(old).endswith("  tokens too old to train: 30")
    assert "too old" not in line(event(update=1, stale_tokens=0))
    report = written(tmp_path, event("group.dropped", reason="overlong"), old, event(update=3, stale_tokens=12))
    assert "| tokens too old to train | 42 |" in report


def test_an_empty_batch_says_the_same():
    assert line(event("update.skipped", update=1, updates=9, dropped=8, dropped__zero_variance=8)) == (
        "update 1/9  no group left to train (8 dropped, solved -)  dropped: zero_variance 8"
    )


def test_nothing_is_said_where_there_is_nothing_to_say():
    plain = line(event(update=1, updates=9, groups=8, dropped=0, skipped_tasks=0))
    assert "dropped:" not in plain
    assert "passed over" not in plain


@pytest.mark.parametrize("reason", ["zero_variance", "overlong", "void_turn", "duplicate", "unprobed", "cancelled"])
def test_drops_that_every_update_counts_have_no_line_of_their_own(reason):
    said = []
    PlainLines(said.append).emit(event("group.dropped", group="t000001", reason=reason))
    assert said == []


def written(tmp_path, *events):
    report = Report()
    for one in (event("run.started", run="x"), *events):
        report.emit(one)
    return report.write(tmp_path).read_text("utf-8")


def test_the_report_sums_up_what_was_left_out_and_dropped(tmp_path):
    text = written(
        tmp_path, event("group.dropped", reason="overlong"), event("group.dropped", reason="overlong"),
        event(update=1, masked__overlong=5), event("update.skipped", update=2, masked__overlong=3, masked__duplicate=1),
    )
    assert "| groups dropped: overlong | 2 |" in text
    assert "| rollouts left out of training: duplicate | 1 |\n| rollouts left out of training: overlong | 8 |" in text


def test_the_report_shows_how_kinds_of_task_moved(tmp_path):
    updates = [
        event(update=k, skipped_tasks=k, pools__unplayed=9 - k, pools__hopeless=k, pools__mixed=1, pools__mastered=0)
        for k in range(1, 6)
    ]
    text = written(tmp_path, *updates)
    assert "15 tasks were passed over: their kinds" in text
    assert "| 1 | 8 | 1 | 1 | 0 |\n| 3 | 6 | 3 | 1 | 0 |\n| 5 | 4 | 5 | 1 | 0 |\n" in text


def test_a_curriculum_without_pools_only_counts():
    assert curriculum([event(update=1, skipped_tasks=2), event(update=2, skipped_tasks=1)])[-1] == (
        "3 tasks were passed over."
    )
    assert curriculum([event(update=1, skipped_tasks=0)]) == []


def test_the_report_has_means_over_the_tokens_of_each_age(tmp_path):
    first = {"age__0__tokens": 300, "age__0__ratio": 1.0, "age__0__kl": 0.0, "age__0__ess": 1.0,
             "age__2__tokens": 100, "age__2__ratio": 1.25, "age__2__kl": 0.25, "age__2__ess": 0.5}  # fmt: skip
    second = {"age__0__tokens": 100, "age__0__ratio": 1.4, "age__0__kl": 0.004, "age__0__ess": 0.6}
    text = written(tmp_path, event(update=1, **first), event(update=2, **second))
    assert "| 0 | 400 | 1.1000 | 1.00e-03 | 0.900 |\n| 2 | 100 | 1.2500 | 2.50e-01 | 0.500 |\n" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"age__0__tokens": 5}, {"age__0__tokens": 0, "age__0__ratio": 1.0, "age__0__kl": 0.0, "age__0__ess": 1.0},
        {"age__x__tokens": 5}, {"age__0__tokens": 5, "age__0__ratio": float("nan"), "age__0__kl": 0, "age__0__ess": 1},
        {"age": 3}, {"ages__0__tokens": 5},
    ],
)
def test_ages_that_are_no_numbers_are_left_out(wrong):
    assert ages([event(update=1, **wrong)]) == []


def test_counts_of_all_updates_are_added_by_name():
    told = [event(masked__b=1, masked__a=2), event(masked__a=3, masked__c="many"), event()]
    assert tally(told, "masked.") == {"a": 5, "b": 1}
