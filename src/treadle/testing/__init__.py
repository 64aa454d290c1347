"""Floor 6: fakes and conformance kits, shipped for those who write environments, engines and rules."""

from __future__ import annotations

from importlib import import_module

_PLACES = {
    "ByteRenderer": "byte_renderer",
    "EchoEnv": "echo_env",
    "EchoTaskset": "echo_env",
    "ScriptedEngine": "scripted_engine",
    "Turn": "scripted_engine",
    "VirtualClock": "virtual_clock",
}
"""Public name to the module of this room that holds it; loaded when it is asked for."""

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
