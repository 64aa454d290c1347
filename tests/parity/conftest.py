"""A tiny policy in two precisions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from treadle.models.policy import Policy
from treadle.models.tiny import build_tiny
from treadle.testing.exact import in_float64

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, heads=4, kv_heads=2, layers=2)


@pytest.fixture
def policy(tiny_folder: Path) -> Policy:
    return Policy.load(tiny_folder)


@pytest.fixture(scope="session")
def policy64(tiny_folder: Path) -> Policy:
    return in_float64(Policy.load(tiny_folder))
