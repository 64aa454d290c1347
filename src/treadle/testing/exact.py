"""A policy in float64 throughout, for tests of exactness.

The norms of transformers compute in float32 whatever the weights are, which would hide a difference below 1e-8.
"""

from __future__ import annotations

import torch
from torch import nn

from treadle.models.policy import Policy


def in_float64(policy: Policy) -> Policy:
    """The same policy, its weights and norms in float64. For models with RMS norms."""
    policy.module.double()
    for module in list(policy.module.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)
    return policy
