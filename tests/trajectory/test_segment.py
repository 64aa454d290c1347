"""Segments refuse columns that contradict each other, and know their versions."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from treadle.trajectory.segment import Author, Segment, Why


def segment(**columns: Any) -> Segment:
    usual: dict[str, Any] = {
        "id": "g0:00000", "group": "g0", "rollout": "g0.0.0", "author": Author.POLICY, "parent": None, "after": None,
        "ids": np.arange(3, dtype=np.int32), "logprobs": np.zeros(3, np.float32), "versions": ((2, 1), (3, 2)),
    }  # fmt: skip
    return Segment(**(usual | columns))


def test_a_sampled_segment_knows_its_oldest_version() -> None:
    assert segment().oldest_version == 2
    assert segment(kv_version=1).oldest_version == 1
    assert segment(author=Author.ENV, logprobs=None, versions=()).oldest_version is None


def test_only_env_segments_are_no_actions() -> None:
    plain = {"logprobs": None, "versions": ()}
    assert [segment().is_action, segment(author=Author.DEMO, **plain).is_action] == [True, True]
    assert not segment(author=Author.ENV, **plain).is_action


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ids": np.zeros(0, np.int32)}, r"got int32\[0\], expected int32\[n >= 1\]"),
        ({"ids": np.zeros(3, np.int64)}, r"got int64\[3\]"),
        ({"logprobs": None}, "has 3 log-probs"),
        ({"logprobs": np.zeros(2, np.float32)}, "has 3 log-probs"),
        ({"author": Author.ENV}, "a policy segment, and no other"),
        ({"author": Author.DEMO}, "a policy segment, and no other"),
        ({"versions": ((2, 2),)}, "do not cover 3 tokens"),
        ({"versions": ()}, "do not cover 3 tokens"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segment(**columns)


def test_a_segment_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        segment().turn = 3  # type: ignore[misc]


def test_forks_compete_and_breaks_do_not() -> None:
    assert {why for why in Why if why.breaks} == {Why.COMPACT, Why.STRIP, Why.DRIFT}
