"""Room on the disk: what a run's checkpoints and copies of weights take at most, before anything is spent."""

from __future__ import annotations

from treadle.models.policy import Policy
from treadle.recipes.notes import needs_copy
from treadle.recipes.recipe import Recipe

COPIES = 3
"""A checkpoint is so many times the weights: themselves and two moments of the optimiser."""
CHECKPOINTS = 2
"""A new checkpoint is complete before the one that it replaces is removed."""
BEST = 1
"""Where evaluations choose a best checkpoint, it stays beside them."""
PUBLISHED = 1
"""So many times the weights are added by a publish; the first one is there already."""
REFERENCE = 1
"""So many times the weights are kept for a penalty to compare with."""


def room(recipe: Recipe, policy: Policy) -> int:
    """Bytes."""
    weights: int = sum(p.numel() * p.element_size() for p in policy.module.parameters())
    held = CHECKPOINTS + (BEST if recipe.pipeline.evaluate_every else 0)
    more = (PUBLISHED if recipe.engine.copies else 0) + (REFERENCE if needs_copy(recipe) else 0)
    return (held * COPIES + more) * weights
