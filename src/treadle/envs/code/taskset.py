"""The code taskset: an endless, seeded supply of functions to write.

Task number i of a split is a pure function of (seed, split, i); families take turns. The two splits draw from streams
of their own. A task's prompt shows two inputs with their results; the tests that count are others and stay outside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.seeds import Stream
from treadle.envs.code.families import FAMILIES, Value, expected, solution
from treadle.envs.task import Task

SPLITS = ("train", "heldout")
SHOWN, TESTED = 2, 8
"""Inputs that a prompt shows, and those that a solution is tested with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a solution is judged by, and one that passes."""

    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    solution: str


class CodeTaskset:
    """Functions to write in Python. Raises ValueError for an unknown family."""

    def __init__(self, seed: int = 0, *, families: Sequence[str] | None = None) -> None:
        chosen = tuple(FAMILIES) if families is None else tuple(families)
        unknown = [name for name in chosen if name not in FAMILIES]
        if unknown or not chosen:
            raise ValueError(f"families: got {list(chosen)}, expected names among {', '.join(FAMILIES)}")
        self.families = chosen
        self._stream = Stream(seed).at("code")

    def size(self, split: str) -> int | None:
        """None: both splits are endless."""
        _known(split)
        return None

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of `train` or `heldout`."""
        _known(split)
        if index < 0:
            raise ValueError(f"task index: got {index}, expected >= 0")
        family = self.families[index % len(self.families)]
        rng = self._stream.at(split, index).python()
        draft = FAMILIES[family](rng)
        inputs = tuple(draft.draw(rng) for _ in range(SHOWN + TESTED))
        results = expected(draft, inputs)
        shown = "\n".join(
            f"f({json.dumps(given)}) gives {json.dumps(result)}"
            for given, result in zip(inputs[:SHOWN], results[:SHOWN], strict=True)
        )
        return Task(
            id=f"code/{split}/{index}", family=family, split=split,
            prompt=f"Write a function f({draft.argument}) that returns {draft.says}.\n{shown}",
            data={"tests": Hidden(inputs=inputs[SHOWN:], results=results[SHOWN:], solution=solution(draft))},
        )

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """The scripted solution of a task of this set, as assistant turns."""
        return (f"```python\n{hidden(task).solution}\n```", "Done.")


def hidden(task: Task) -> Hidden:
    """What a code task holds beyond its prompt. Raises ValueError for a task of another kind."""
    found = task.data.get("tests")
    if not isinstance(found, Hidden):
        raise ValueError(f"task {task.id}: got data with keys {sorted(task.data)}, expected tests of a function")
    return found


def _known(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
