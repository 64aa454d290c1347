"""Floor 2: models and their weights. A `Policy` is a module, an attention hook, a gate and a version."""

from treadle.models.attention import AttentionPlan, CausalPlan, MaskPlan
from treadle.models.dims import Dims
from treadle.models.folders import atomic_folder
from treadle.models.gate import Gate
from treadle.models.policy import Policy
from treadle.models.source import Kind, Source, cache_folder, chat_template, locate, require_chat_template, resolve
from treadle.models.tiny import build_tiny

__all__ = [
    "AttentionPlan",
    "CausalPlan",
    "Dims",
    "Gate",
    "Kind",
    "MaskPlan",
    "Policy",
    "Source",
    "atomic_folder",
    "build_tiny",
    "cache_folder",
    "chat_template",
    "locate",
    "require_chat_template",
    "resolve",
]
