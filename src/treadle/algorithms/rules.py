"""The credit rules by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.algorithms.aggregation import AGGREGATIONS, Aggregation
from treadle.algorithms.credit import CreditRule
from treadle.algorithms.group_baseline import DrGrpo, Grpo, Rloo
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.registry import build

RULES: Mapping[str, type[CreditRule]] = {kind.name: kind for kind in (Grpo, DrGrpo, Rloo, Imitation)}


def rule(name: str, **params: Any) -> CreditRule:
    """The rule of this name with these settings. Raises ConfigError with the nearest name."""
    return build("rule", RULES, name, params)


def aggregation(name: str, **params: Any) -> Aggregation:
    """The aggregation of this name with these settings. Raises ConfigError with the nearest name."""
    return build("aggregation", AGGREGATIONS, name, params)
