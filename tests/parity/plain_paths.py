"""Forests of a test, and the plain way through them: one rollout at a time, through autograd."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treadle.algorithms.credit import PathCredit
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy
from treadle.testing.forests import Node, grow
from treadle.testing.random_forests import Growth, random_tree
from treadle.trajectory.forest import Forest

GROWTH = Growth(vocabulary=200, failure=0.1, demonstration=0.0)

def trees(seed: int, count: int = 2) -> list[Node]:
    rng = np.random.default_rng(seed)
    return [random_tree(rng, GROWTH) for _ in range(count)]


def forest_of(roots: list[Node]) -> Forest:
    return Forest.of([grow(root, id=f"g{i}", ticket=i).group for i, root in enumerate(roots)])


def credit_of(forest: Forest) -> PathCredit:
    return PathCredit(advantage=forest.returns - 0.1)


def take_gradient(policy: Policy) -> Tensor:
    """All gradients as one vector; clears them."""
    parts = []
    for parameter in policy.module.parameters():
        parts.append((torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten().clone())
        parameter.grad = None
    return torch.cat(parts)


def action_logprobs(policy: Policy, forest: Forest, row: int) -> Tensor:
    """log p of one action's tokens after its whole context, by a plain causal forward."""
    path, at = [], row
    while at >= 0:
        path.append(forest.segments[at].ids)
        at = int(forest.parent[at])
    ids = torch.from_numpy(np.concatenate(path[::-1])).long()
    states = policy.hidden(ids, torch.arange(len(ids)), CausalPlan())
    n = len(forest.segments[row])
    return policy.logits(states[-n - 1 : -1]).log_softmax(-1).gather(1, ids[-n:, None])[:, 0]


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp(min=1e-30))
