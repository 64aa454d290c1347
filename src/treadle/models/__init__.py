"""Floor 2: models and their weights. A `Policy` is a module, an attention hook, a gate and a version."""

from treadle.models.attention import AttentionPlan, CausalPlan, MaskPlan
from treadle.models.gate import Gate
from treadle.models.policy import Dims, Policy
from treadle.models.source import resolve
from treadle.models.tiny import build_tiny

__all__ = ["AttentionPlan", "CausalPlan", "Dims", "Gate", "MaskPlan", "Policy", "build_tiny", "resolve"]
