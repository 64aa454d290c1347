"""A process reward model as a step reward: every action is paid by what the state behind it is worth.

The model stands in a folder that `prm` wrote. It is a policy's body with a regression head, read on the state behind a
segment's last token. An action is paid the difference of the values behind it and before it, which adds up along a
rollout to the last value minus the first, or the value behind it. It is loaded when it is first asked, and holds the
body's weights once, no gradients: its own, so that the reward stays what it is while a policy learns.

    FOLDER/prm.json             format, sizes, how it was made and how good it is
    FOLDER/head.safetensors     the head
    FOLDER/model/               the body, as transformers loads it
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from treadle.core.errors import ConfigError
from treadle.learner.config import LearnerConfig, PrmConfig
from treadle.learner.scoring import Scorer
from treadle.learner.value import regressor
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest, Mask

FORMAT, FACTS, HEAD, BODY = 1, "prm.json", "head.safetensors", "model"


def judged(forest: Forest) -> Mask:
    """[N] rows with a value to learn: actions, and the prompts that come first in time."""
    return forest.action | (forest.after < 0)


class ProcessReward:
    """A saved model as a step reward."""

    def __init__(self, config: PrmConfig, learner: LearnerConfig, *, dtype: str, vocab: int) -> None:
        """Looks at the folder only. Raises ConfigError when it is none, or reads other tokens than the policy."""
        self.config = config
        self._learner = learner
        self._dtype = dtype
        self._facts = facts_of(Path(config.folder))
        if self._facts["vocab"] != vocab:
            raise ConfigError(
                f"algorithm.prm.folder={config.folder}: it reads a vocabulary of {self._facts['vocab']} tokens, the "
                f"policy has {vocab}; train one on a run of this model: treadle prm RUN"
            )
        self._held: tuple[Scorer, Any] | None = None

    def rewarded(self, forest: Forest) -> Forest:
        """The forest with every action paid. Raises ConfigError, ModelError when the model cannot be loaded."""
        values = self.values(forest)
        if not np.isfinite(values[judged(forest)]).all():
            raise ConfigError(f"algorithm.prm.folder={self.config.folder}: a value is no number; train it again")
        pays = values if self.config.by == "value" else values - _before(forest, values)
        return replace(forest, reward=forest.reward + self.config.coefficient * np.where(forest.action, pays, 0.0))

    def values(self, forest: Forest) -> Column:
        """[N] value behind each row's last token."""
        scorer, head = self._held = self._held or self._load()
        return read_values(scorer, head, forest) * float(self._facts["scale"]) + float(self._facts["mean"])

    def _load(self) -> tuple[Scorer, Any]:
        folder = Path(self.config.folder)
        policy = Policy.load(folder / BODY, dtype=self._dtype)
        if policy.dims.hidden != self._facts["hidden"]:
            raise ConfigError(
                f"algorithm.prm.folder={folder}: the head is {self._facts['hidden']} wide, the model "
                f"{policy.dims.hidden}; train it again"
            )
        policy.module.requires_grad_(False)
        scorer = Scorer(policy, self._learner)
        head = regressor(policy.dims.hidden, self._facts["width"], device=scorer.device, dtype=torch.float32)
        try:
            head.load_state_dict(load_file(folder / HEAD))
        except (OSError, SafetensorError, RuntimeError) as error:  # RuntimeError: names or shapes that do not fit
            said = str(error).splitlines()[0][:200]
            raise ConfigError(f"algorithm.prm.folder={folder}: {HEAD} does not fit ({said}); train it again") from error
        head.requires_grad_(False)
        return scorer, head


def facts_of(folder: Path) -> dict[str, Any]:
    """What `prm.json` says. Raises ConfigError when the folder holds no process reward model."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        held = {key: facts[key] for key in ("format", "hidden", "vocab", "width", "mean", "scale")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"algorithm.prm.folder={folder}: got no readable {FACTS} ({type(error).__name__}), expected a folder that "
            "`treadle prm RUN` wrote"
        ) from error
    lacking = [name for name in (HEAD, BODY) if not (folder / name).exists()]
    if lacking or held["format"] != FORMAT:
        what = f"it lacks {lacking[0]}" if lacking else f"its format is {held['format']}, expected {FORMAT}"
        raise ConfigError(f"algorithm.prm.folder={folder}: {what}; make it again with `treadle prm RUN`")
    return held


def read_values(scorer: Scorer, head: Any, forest: Forest) -> Column:
    """[N] the head behind each row's last token; 0 for a context that is one token long."""

    def read(before: Tensor, behind: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = head(behind.float())[:, 0]
        return found

    column = scorer.scan(
        forest, {"value": read}, budget_tokens=scorer.config.tokens_per_pack, everywhere=True
    )["value"]
    return np.nan_to_num(column[forest.start[1:] - 1], nan=0.0)


def _before(forest: Forest, values: Column) -> Column:
    """[N] value of the judged row before each in time."""
    known, out = judged(forest), np.zeros(len(forest))
    for row, after in enumerate(forest.after.tolist()):
        if after >= 0:
            out[row] = values[after] if known[after] else out[after]
    return out
