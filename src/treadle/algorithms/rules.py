"""The credit rules by name."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.algorithms.credit import CreditRule
from treadle.algorithms.group_baseline import DrGrpo, Grpo, Rloo
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.tree_pg import TreePg

RULES: Mapping[str, type[CreditRule]] = {kind.name: kind for kind in (Grpo, DrGrpo, Rloo, Imitation, TreePg)}
