from __future__ import annotations

import pytest

from treadle.core.outcome import limit
from treadle.envs.sandbox import SandboxLimits
from treadle.envs.step import Step
from treadle.envs.task import ListTaskset, Task

ONE, TWO = Task(id="1", prompt="a"), Task(id="2", prompt="b", split="heldout")


def test_a_list_taskset_counts_and_gives_by_number() -> None:
    tasks = ListTaskset([ONE], [TWO])
    assert (tasks.size("train"), tasks.size("heldout")) == (1, 1)
    assert tasks.task("heldout", 0) is TWO
    assert tasks.demonstration(ONE) is None


def test_a_list_taskset_refuses_what_it_does_not_hold() -> None:
    tasks = ListTaskset([ONE])
    with pytest.raises(IndexError, match="1 tasks, got index 1"):
        tasks.task("train", 1)
    with pytest.raises(ValueError, match="expected one of train, heldout"):
        tasks.size("test")
    with pytest.raises(ValueError, match="unique"):
        ListTaskset([ONE], [ONE])


def test_a_step_is_done_for_any_reason() -> None:
    assert not Step().done
    assert all(step.done for step in (Step(terminated=True), Step(truncated=True), Step(outcome=limit("turns"))))


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="sandbox limit processes: got 0"):
        SandboxLimits(processes=0)
