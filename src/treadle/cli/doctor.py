"""`treadle doctor`: is everything here that a run needs? One line per check, with the remedy."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST_DISK_GB = 3.0
"""Weights unpacked once, and one checkpoint with its optimiser state."""


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("doctor", help="check Python, torch, sandbox, model, disk")
    command.add_argument("--model", default="smollm2-135m", help="the model to look for (default: the embedded one)")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every check; 1 if one failed."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", _python), ("torch", _torch), ("transformers", _transformers), ("processor", _processor),
        ("sandbox", _sandbox), ("model", lambda: _model(args.model)), ("disk", _disk), ("run folder", _runs),
    )
    failed = 0
    for name, check in checks:
        try:
            line = f"ok    {name}: {check()}"
        except Missing as error:
            failed += 1
            line = f"FAIL  {name}: {error}"
        print(line)
    return 1 if failed else 0


class Missing(Exception):
    """A check failed: what, and what to do."""


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _torch() -> str:
    version = _installed("torch", "pip install torch")
    import torch

    return f"{version}, {torch.get_num_threads()} threads"


def _transformers() -> str:
    return _installed("transformers", "pip install 'transformers>=5.24'")


def _installed(package: str, remedy: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Missing(f"not installed; {remedy}") from None


def _processor() -> str:
    return f"{os.cpu_count()} cores"


def _sandbox() -> str:
    from treadle.envs.bubblewrap import BubblewrapSandbox

    reason = BubblewrapSandbox.available()
    if reason is not None:
        raise Missing(reason)
    return "bubblewrap starts"


def _model(ref: str) -> str:
    from treadle.core.errors import ModelError
    from treadle.models.source import locate

    try:
        source = locate(ref)
    except ModelError as error:
        raise Missing(str(error)) from None
    return source.line


def _disk() -> str:
    from treadle.models.source import cache_folder

    at = cache_folder()
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free / 1e9
    if free < LEAST_DISK_GB:
        raise Missing(f"{free:.1f} GB free under {at}, expected at least {LEAST_DISK_GB:g}; set TREADLE_CACHE")
    return f"{free:.0f} GB free under {at}"


def _runs() -> str:
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd()):
            return f"{Path.cwd()} can be written"
    except OSError as error:
        raise Missing(f"{Path.cwd()} cannot be written ({error.strerror}); set runs=FOLDER") from None
