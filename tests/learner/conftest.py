"""A tiny policy in two precisions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from treadle.models.policy import Policy
from treadle.models.tiny import build_tiny

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, heads=4, kv_heads=2, layers=2)


@pytest.fixture
def policy(tiny_folder: Path) -> Policy:
    return Policy.load(tiny_folder)


@pytest.fixture(scope="session")
def policy64(tiny_folder: Path) -> Policy:
    """In float64 throughout: the norms of transformers compute in float32, so they are replaced."""
    loaded = Policy.load(tiny_folder)
    loaded.module.double()
    for module in list(loaded.module.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)
    return loaded
