"""Tasks and where they come from.

A task is a frozen problem: what the model is told (`prompt`) and what only the environment knows (`data`). A taskset
is counter-based: task number i of a split is a pure function of (taskset, split, i), so a run that resumes asks for
the same numbers and gets the same tasks, and no iterator has to be rewound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


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
