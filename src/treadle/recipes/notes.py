"""What notes are made of beside the learner's own weights: a reference, reference answers, a process reward model.

The reference is the policy that reinforcement learning began with. Adapters need no copy of it: they are left out. Else
its weights are written to the run's `reference` folder before the first update, because the checkpoint that they came
from may be gone when the run is resumed; a run that goes on takes them from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from treadle.core.errors import ConfigError
from treadle.core.ports import Ids
from treadle.envs.task import Task, Taskset, task_of
from treadle.learner.process_reward import ProcessReward
from treadle.learner.reference import FrozenReference, Reference
from treadle.models.policy import Policy
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe

REMEMBERED = 100_000
"""Tasks whose answers are known: far more than are outstanding at once."""


def needs_copy(recipe: Recipe) -> bool:
    """Whether the weights that reinforcement learning begins with are held a second time."""
    return "ref" in recipe.algorithm.columns and recipe.learner.lora_rank is None


def reference_of(recipe: Recipe, policy: Policy, folder: RunFolder, *, fresh: bool) -> Reference | None:
    """The reference, if the recipe asks for one that adapters do not give. Raises ModelError, and
    ConfigError when a run that goes on has lost it."""
    if not needs_copy(recipe):
        return None
    if fresh:
        policy.save(folder.reference)
    elif not folder.reference.is_dir():
        raise ConfigError(
            f"{folder.reference} is gone: the weights that reinforcement learning began with are needed for "
            "algorithm.kl; begin a new run"
        )
    return FrozenReference(
        folder.reference, recipe.learner, dtype=recipe.dtype, compute_dtype=recipe.compute_dtype
    )


def process_reward(recipe: Recipe, policy: Policy) -> ProcessReward | None:
    """The recipe's process reward model, unloaded. Raises ConfigError for a folder that is none."""
    config = recipe.algorithm.prm
    if config is None:
        return None
    return ProcessReward(config, recipe.learner, dtype=recipe.dtype, vocab=policy.dims.vocab)


class AnswerBook:
    """A taskset that remembers the reference answers of the tasks it gave."""

    def __init__(self, taskset: Taskset, *, rule: str, encode: Callable[[str], Sequence[int]]) -> None:
        """Raises ConfigError when the first training task has no answer."""
        self._taskset = taskset
        self._encode = encode
        self._held: OrderedDict[str, str] = OrderedDict()
        first = task_of(self, "train", 0)
        if not first.answer:
            raise ConfigError(
                f"algorithm.rule={rule} needs reference answers: task {first.id} has none; give each Task an `answer`, "
                "or choose another rule"
            )

    def size(self, split: str) -> int | None:
        """How many tasks the split holds."""
        return self._taskset.size(split)

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of the split."""
        found = self._taskset.task(split, index)
        self._held[found.id] = found.answer
        while len(self._held) > REMEMBERED:
            self._held.popitem(last=False)
        return found

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """The scripted solution."""
        return self._taskset.demonstration(task)

    def ids(self, task: str) -> Ids | None:
        """Tokens of a task's reference answer; None when it has none."""
        text = self._held.get(task)
        return np.array(self._encode(text), dtype=np.int32) if text else None
