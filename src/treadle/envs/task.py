"""Tasks and where they come from.

A task is a frozen problem: what the model is told (`prompt`) and what only the environment knows (`data`). A taskset
is counter-based: task number i of a split is a pure function of (taskset, split, i), so a run that resumes asks for
the same numbers and gets the same tasks, and no iterator has to be rewound.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from treadle.core.errors import EnvError, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem."""

    id: str
    """Unique within the taskset, over all splits."""
    prompt: str
    """What the model is told."""
    family: str = ""
    """Kind of problem, for reports; empty when the taskset has no families."""
    level: str = ""
    """Difficulty, for reports."""
    split: str = "train"
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the environment needs to set up and to score. Never reaches the model."""
    answer: str = ""
    """The reference answer, for rules that ask how likely the model finds it after each turn; empty where there is
    none. It is never part of what the model is told."""


class Taskset(Protocol):
    """A numbered source of tasks per split.

    Raises
    ------
    ValueError      an unknown split
    IndexError      an index outside a finite split
    """

    def size(self, split: str) -> int | None:
        """How many tasks the split holds; None when it is endless."""
        ...

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of the split; equal arguments give equal tasks."""
        ...

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """The assistant turns of a scripted solution; None when there is none."""
        ...


def size_of(taskset: Taskset, split: str) -> int | None:
    """How many tasks a split holds; None when it is endless. Raises EnvError for whatever the taskset's code does."""
    try:
        size = taskset.size(split)
        known = None if size is None else operator.index(size)
    except Exception as error:  # the border to a taskset, which is user code
        raise EnvError(f"taskset: size of split {split!r}: {type(error).__name__}: {one_line(error)}") from error
    if known is not None and known < 0:
        raise EnvError(f"taskset: size of split {split!r}: got {known}, expected at least 0")
    return known


def task_of(taskset: Taskset, split: str, number: int) -> Task:
    """Task number `number`; a finite split starts over when it is through. Raises EnvError like `size_of`."""
    where = f"taskset: task {number} of split {split!r}"
    size = size_of(taskset, split)
    if size == 0:
        raise EnvError(f"{where}: the split holds no task")
    try:
        task = taskset.task(split, number if size is None else number % size)
    except Exception as error:  # the border to a taskset, which is user code
        raise EnvError(f"{where}: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(task, Task):
        raise EnvError(f"{where}: got {type(task).__name__}, expected a Task")
    for name in ("id", "prompt", "family", "level", "split", "answer"):
        if not isinstance(getattr(task, name), str):
            raise EnvError(f"{where}: got {name}={getattr(task, name)!r}, expected text")
    return task


def demonstration_of(taskset: Taskset, task: Task) -> Sequence[str] | None:
    """The turns of a scripted solution; None when there is none. Raises EnvError like `size_of`."""
    where = f"taskset: demonstration of task {task.id}"
    try:
        turns = taskset.demonstration(task)
    except Exception as error:  # the border to a taskset, which is user code
        raise EnvError(f"{where}: {type(error).__name__}: {one_line(error)}") from error
    if turns is None:
        return None
    if not turns or not isinstance(turns, list | tuple) or not all(isinstance(turn, str) for turn in turns):
        raise EnvError(f"{where}: got {turns!r:.80}, expected at least one text")
    return turns


class ListTaskset:
    """A taskset over two plain lists, without demonstrations."""

    def __init__(self, train: Sequence[Task], heldout: Sequence[Task] = ()) -> None:
        self._splits = {"train": tuple(train), "heldout": tuple(heldout)}
        ids = [task.id for tasks in self._splits.values() for task in tasks]
        twice = sorted({id_ for id_ in ids if ids.count(id_) > 1}) if len(set(ids)) < len(ids) else []
        if twice:
            raise ValueError(f"task ids must be unique over both splits, got twice: {', '.join(twice[:5])}")

    def size(self, split: str) -> int | None:
        """How many tasks the split holds."""
        return len(self._of(split))

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of the split."""
        tasks = self._of(split)
        if not 0 <= index < len(tasks):
            raise IndexError(f"split {split!r} has {len(tasks)} tasks, got index {index}")
        return tasks[index]

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """None: plain lists carry no scripted solutions."""
        return None

    def _of(self, split: str) -> tuple[Task, ...]:
        if split not in self._splits:
            raise ValueError(f"split: got {split!r}, expected one of {', '.join(self._splits)}")
        return self._splits[split]
