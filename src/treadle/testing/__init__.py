"""Floor 6: fakes and conformance kits, shipped for those who write environments, engines and rules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from treadle.testing.byte_renderer import ByteRenderer
    from treadle.testing.credit_kit import check_credit
    from treadle.testing.echo_env import EchoEnv, EchoTaskset
    from treadle.testing.engine_kit import check_engine
    from treadle.testing.env_kit import check_env
    from treadle.testing.fork_kit import check_forks
    from treadle.testing.sandbox_kit import check_sandbox
    from treadle.testing.scripted_engine import ScriptedEngine, Turn
    from treadle.testing.virtual_clock import VirtualClock
    from treadle.testing.weights_kit import check_weights

_PLACES = {
    "ByteRenderer": "byte_renderer",
    "EchoEnv": "echo_env",
    "EchoTaskset": "echo_env",
    "ScriptedEngine": "scripted_engine",
    "Turn": "scripted_engine",
    "VirtualClock": "virtual_clock",
    "check_credit": "credit_kit",
    "check_engine": "engine_kit",
    "check_env": "env_kit",
    "check_forks": "fork_kit",
    "check_sandbox": "sandbox_kit",
    "check_weights": "weights_kit",
}
"""Public name to the module of this room that holds it, loaded when it is asked for. No module is called as a name."""

__all__ = [
    "ByteRenderer", "EchoEnv", "EchoTaskset", "ScriptedEngine", "Turn", "VirtualClock", "check_credit", "check_engine",
    "check_env", "check_forks", "check_sandbox", "check_weights",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
