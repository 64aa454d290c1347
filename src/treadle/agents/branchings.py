"""The branching policies by name."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.agents.branch_entropy import ByEntropy
from treadle.agents.branch_expand import Expand
from treadle.agents.branch_finished import ExpandFinished
from treadle.agents.branch_fixed import FixedTree
from treadle.agents.branch_none import Independent
from treadle.agents.branch_probe import Probe
from treadle.agents.branching import Branching

BRANCHING: Mapping[str, type[Branching]] = {
    kind.name: kind for kind in (Independent, FixedTree, ByEntropy, Expand, ExpandFinished, Probe)
}
