"""The credit rules by name."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.algorithms.credit import CreditRule
from treadle.algorithms.dapo import Dapo
from treadle.algorithms.gae import Gae, TurnGae
from treadle.algorithms.gigpo import GiGpo
from treadle.algorithms.graph import Graph
from treadle.algorithms.group_baseline import DrGrpo, Grpo, MaxRl, Opo, Rloo
from treadle.algorithms.igpo import IgPo
from treadle.algorithms.imitation import Imitation
from treadle.algorithms.mt_grpo import MtGrpo
from treadle.algorithms.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from treadle.algorithms.tree_rules import SpoTree, TreeGrpo, TreeRl, TreeRpo
from treadle.algorithms.vine import Vine

RULES: Mapping[str, type[CreditRule]] = {
    kind.name: kind
    for kind in (
        Grpo, DrGrpo, Dapo, Rloo, Opo, MaxRl, ReinforcePP, ReinforcePPBaseline, Gae, TurnGae, MtGrpo, GiGpo, IgPo, Vine,
        TreeGrpo, TreeRl, SpoTree, TreeRpo, Graph, Imitation,
    )
}
