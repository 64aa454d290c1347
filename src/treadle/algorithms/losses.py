"""The losses by name. What a loss is stands in `loss`; each family has a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.algorithms.loss import MOST_LOG_RATIO, EdgeLoss, Loss, LossTerms
from treadle.algorithms.losses_clipped import Cispo, DppoTv, PpoClip, Sapo
from treadle.algorithms.losses_plain import Nll, Reinforce
from treadle.algorithms.losses_sequence import Gspo

__all__ = [
    "LOSSES", "MOST_LOG_RATIO", "Cispo", "DppoTv", "EdgeLoss", "Gspo", "Loss", "LossTerms", "Nll", "PpoClip",
    "Reinforce", "Sapo",
]

LOSSES: Mapping[str, type[Loss]] = {
    kind.name: kind for kind in (Nll, PpoClip, Cispo, Gspo, Sapo, Reinforce, DppoTv)
}
