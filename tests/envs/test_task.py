from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.core.errors import EnvError
from treadle.core.outcome import limit
from treadle.envs.sandbox import SandboxLimits
from treadle.envs.step import Step
from treadle.envs.task import ListTaskset, Task, demonstration_of, size_of, task_of

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


class Odd(ListTaskset):
    """Gives what a test says, by method; an exception is raised."""

    def __init__(self, **given: object) -> None:
        super().__init__([ONE])
        self.given = given

    def size(self, split: str) -> int | None:
        return self._out("size", super().size(split))

    def task(self, split: str, index: int) -> Task:
        return self._out("task", super().task(split, index))

    def demonstration(self, task: Task) -> Sequence[str] | None:
        return self._out("demonstration", None)

    def _out(self, name: str, otherwise: Any) -> Any:
        value = self.given.get(name, otherwise)
        if isinstance(value, Exception):
            raise value
        return value


def test_a_finite_split_starts_over() -> None:
    assert task_of(Odd(), "train", 7) is ONE
    assert size_of(Odd(size=None), "train") is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": RuntimeError("no")}, "size of split 'train': RuntimeError: no"),
        ({"size": "5"}, "size of split 'train': TypeError"),
        ({"size": -1}, "size of split 'train': got -1"),
        ({"size": 0}, "task 3 of split 'train': the split holds no task"),
        ({"task": KeyError("no")}, "task 3 of split 'train': KeyError: 'no'"),
        ({"task": None}, "task 3 of split 'train': got NoneType, expected a Task"),
        ({"task": Task(id="1", prompt=None)}, "got prompt=None, expected text"),  # type: ignore[arg-type]
    ],
)
def test_a_taskset_that_fails_is_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(EnvError, match=re.escape(said)):
        task_of(Odd(**given), "train", 3)


@pytest.mark.parametrize("given", [ValueError("no"), [], [None], 5, "text"])
def test_a_demonstration_is_at_least_one_text(given: object) -> None:
    with pytest.raises(EnvError, match="demonstration of task 1: "):
        demonstration_of(Odd(demonstration=given), ONE)
