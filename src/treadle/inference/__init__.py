"""Floor 3: engines. Ids in, ids out; nothing here knows messages, tasks or rewards."""

from treadle.inference.config import EngineConfig
from treadle.inference.copied import CopiedEngine
from treadle.inference.engine import LocalEngine
from treadle.inference.port import Engine, LoadMode, LoadSignal

__all__ = ["CopiedEngine", "Engine", "EngineConfig", "LoadMode", "LoadSignal", "LocalEngine"]
