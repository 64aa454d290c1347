"""The process reward model: what the state behind an action is worth, learned from a stored forest.

Every node of a forest has a value: the mean over its children of theirs, a rollout's return where it ends
(`Forest.child_mean`). The model is a policy's body with a regression head on the state behind an action's last token,
and behind the prompt's. `fit` trains the head, or the head and the body's last layers, on the nodes of some groups and
says how well it ranks those of others. What is saved is what `process_reward` loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from treadle.core import compute
from treadle.core.errors import ConfigError, ModelError, StoreError
from treadle.core.folders import atomic_folder
from treadle.learner.config import LearnerConfig
from treadle.learner.pack import PackedBatch
from treadle.learner.process_reward import BODY, FACTS, FORMAT, HEAD, judged, read_values
from treadle.learner.scoring import Scorer, packs_of
from treadle.learner.value import regressor
from treadle.models.policy import Policy
from treadle.trajectory.forest import Column, Forest, Mask

EVERY = 5
"""One group of so many is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrmFit:
    """How it is trained. Raises ConfigError naming the option."""

    layers: int = 0
    """So many of the body's last layers train with the head; 0 trains the head alone, on states computed once."""
    width: int | None = None
    """Units of one hidden layer of the head; None is linear."""
    epochs: int = 200
    """Passes over the nodes; with `layers` each is a forward and backward of the body."""
    lr: float = 3e-3
    """Of the head; layers train at a hundredth of it."""
    decay: float = 0.01
    """Decoupled weight decay of the head."""

    def __post_init__(self) -> None:
        for key, value, low in (("layers", self.layers, 0), ("epochs", self.epochs, 1), ("width", self.width, 1)):
            if value is not None and value < low:
                raise ConfigError(f"prm: {key}: got {value}, expected >= {low}")
        if not self.lr > 0:
            raise ConfigError(f"prm: lr: got {self.lr}, expected > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrmReport:
    """How good it is on groups that it was not trained on."""

    groups: int
    nodes: int
    """Trained on."""
    heldout_groups: int
    heldout_nodes: int
    correlation: float | None
    """Pearson's, of predicted and stored values; None where one of them does not vary."""
    auc: float | None
    """How often it ranks a node above the training mean over one below; None where all are on one side."""
    train_correlation: float | None
    error: float
    """Mean squared error."""
    mean_error: float
    """The same for always saying the training mean: what knowing nothing costs."""


class PrmTrainer:
    """Fits a head on a policy. The policy is changed where layers train. Raises ConfigError for layers it lacks."""

    def __init__(self, policy: Policy, fit: PrmFit, config: LearnerConfig) -> None:
        if fit.layers > policy.dims.layers:
            raise ConfigError(
                f"prm: layers: got {fit.layers}, expected at most {policy.dims.layers}, which is what the model has"
            )
        trained = policy.train(fit.layers) if fit.layers else []
        if not fit.layers:
            policy.module.requires_grad_(False)
        self.policy = policy
        self.fit_config = fit
        self.scorer = Scorer(policy, config)
        self.head = regressor(policy.dims.hidden, fit.width, device=self.scorer.device, dtype=torch.float32)
        groups: list[dict[str, Any]] = [{"params": list(self.head.parameters()), "weight_decay": fit.decay}]
        if trained:
            groups.append({"params": trained, "lr": fit.lr / 100, "weight_decay": 0.0})
        self.optimiser = torch.optim.AdamW(groups, lr=fit.lr)
        self._mean, self._scale = 0.0, 1.0

    def fit(self, forests: Sequence[Forest]) -> PrmReport:
        """Train on four of five forests, one per group, and judge by the others. Raises ConfigError for too few."""
        train = [f for i, f in enumerate(forests) if i % EVERY != EVERY - 1]
        held = [f for i, f in enumerate(forests) if i % EVERY == EVERY - 1]
        if not held:
            got = f"{len(forests)} groups that were scored"
            raise ConfigError(f"prm: got {got}, expected at least {EVERY}; train longer")
        target = np.concatenate([self._targets(f) for f in train])
        if target.std() == 0:
            raise ConfigError(f"prm: all {len(target)} nodes have the value {target[0]:g}: there is nothing to learn")
        self._mean, self._scale = float(target.mean()), float(target.std())
        compute.run(lambda: self._train(train))
        seen, found = (np.concatenate([self.values(f)[judged(f)] for f in part]) for part in (train, held))
        meant = np.concatenate([self._targets(f) for f in held])
        return PrmReport(
            groups=len(train), nodes=len(target), heldout_groups=len(held), heldout_nodes=len(meant),
            correlation=correlation(found, meant), auc=auc(found, meant > self._mean),
            train_correlation=correlation(seen, target), error=float(np.square(found - meant).mean()),
            mean_error=float(np.square(self._mean - meant).mean()),
        )

    def values(self, forest: Forest) -> Column:
        """[N] value behind each row's last token."""
        return read_values(self.scorer, self.head, forest) * self._scale + self._mean

    def save(self, folder: Path, report: PrmReport) -> None:
        """Write all of it; the folder is there whole or not at all. Raises StoreError when the disk refuses."""
        facts = {
            "format": FORMAT, "hidden": self.policy.dims.hidden, "vocab": self.policy.dims.vocab,
            "width": self.fit_config.width, "mean": self._mean, "scale": self._scale, "fit": asdict(self.fit_config),
            "report": asdict(report),
        }
        try:
            with atomic_folder(folder, replace=True) as fresh:
                self.policy.save(fresh / BODY)
                save_file({n: p.detach().contiguous() for n, p in self.head.named_parameters()}, fresh / HEAD)
                (fresh / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        except (OSError, ModelError) as error:
            raise StoreError(f"prm {folder}: cannot write ({error}); free disk space or name another") from error

    def _targets(self, forest: Forest) -> Column:
        return forest.child_mean(forest.returns)[judged(forest)]

    def _train(self, forests: Sequence[Forest]) -> None:
        parts = [part for f in forests for part in self._parts(f)]
        if not self.fit_config.layers:
            size = self.scorer.config.tokens_per_pack
            held = [(self.scorer.states(b, size=size, behind=True)[at].float(), target) for b, at, target in parts]
            states, meant = torch.cat([s for s, _ in held]), torch.cat([t for _, t in held])
            for _ in range(self.fit_config.epochs):
                self._step(states, meant)
            return
        for _ in range(self.fit_config.epochs):
            for batch, at, target in parts:
                self._step(self.scorer.forward(batch, behind=True)[at].float(), target)

    def _step(self, states: Tensor, target: Tensor) -> None:
        loss = (self.head(states)[:, 0] - target).square().mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def _parts(self, forest: Forest) -> Iterator[tuple[PackedBatch, Tensor, Tensor]]:
        """Packs, the places of judged rows' last tokens in them, and their scaled values."""
        meant = np.full(len(forest), np.nan)
        meant[judged(forest)] = (self._targets(forest) - self._mean) / self._scale
        for batch in packs_of(forest, budget_tokens=self.scorer.config.tokens_per_pack, everywhere=True):
            last = (batch.offset == forest.length[batch.row] - 1) & ~np.isnan(meant[batch.row])
            if last.any():
                target = torch.from_numpy(meant[batch.row[last]]).float().to(self.scorer.device)
                yield batch, batch.tgt[torch.from_numpy(last)].to(self.scorer.device), target


def correlation(a: Column, b: Column) -> float | None:
    """Pearson's; None where one does not vary."""
    return None if len(a) < 2 or a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def auc(score: Column, good: Mask) -> float | None:
    """Share of (good, bad) pairs that the score ranks right, ties half; None without a pair."""
    n, m = int(good.sum()), int((~good).sum())
    if not n or not m:
        return None
    values, place = np.unique(score, return_inverse=True)
    counts = np.bincount(place, minlength=len(values))
    rank = np.cumsum(counts) - (counts - 1) / 2  # mean rank of equal scores, from 1
    return float((rank[place][good].sum() - n * (n + 1) / 2) / (n * m))
