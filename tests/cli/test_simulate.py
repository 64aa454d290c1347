"""`treadle simulate`: a table, a line at a time, and one line for what is wrong."""

import json

import pytest

SMALL = ("--groups", "4", "--group-size", "2", "--updates", "6", "--engines", "2")


def test_every_combination_is_a_line(treadle):
    said = treadle("simulate", *SMALL, "--lags", "0,1")
    assert said.code == 0
    head, *lines = said.out.splitlines()
    assert head.split()[:3] == ["schedule", "lag", "bound"]
    assert [line.split()[:3] for line in lines] == [
        [name, lag, str(int(lag) + slack)] for lag in ("0", "1") for slack in (0, 1) for name in ("tickets", "strict")
    ]


def test_json_has_every_figure(treadle):
    said = treadle("simulate", *SMALL, "--schedules", "freshest", "--slacks", "1", "--json")
    row = json.loads(said.out)
    assert (row["schedule"], row["max_staleness"], row["ended_once"]) == ("freshest", 2, True)
    assert 0 < row["share_of_ideal"] < 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--schedules", "tickts"), ("'tickts'", "did you mean 'tickets'?")),
        (("--engines", "many"), ("--engines: got 'many'",)), (("--engines", "0"), ("fleet.engines: got 0",)),
        (("--groups", "0"), ("pipeline.groups_per_update: got 0",)),
    ],
)
def test_what_is_wrong_is_one_line(treadle, argv, words):
    said = treadle("simulate", *argv)
    assert said.code == 2
    assert [word for word in words if word not in said.err] == []
    assert len(said.err.splitlines()) == 1
