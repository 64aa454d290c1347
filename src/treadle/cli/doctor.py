"""`treadle doctor`: is everything here that a run needs? One line per check, with the remedy."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST_DISK_GB = 5.0
"""Weights unpacked once, and two checkpoints with their optimiser state."""
LEAST_PYTHON = (3, 11)


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("doctor", help="check Python, torch, sandbox, model, disk")
    command.add_argument("--model", default="smollm2-135m", help="the model to look for (default: the embedded one)")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every check; 1 if one failed."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", _python), ("torch", _torch), ("transformers", _transformers), ("machine", _machine),
        ("sandbox", _sandbox), ("model", lambda: _model(args.model)), ("model cache", _cache),
        ("run folder", lambda: _writable(Path.cwd(), "runs=FOLDER")),
    )
    failed = 0
    for name, check in checks:
        try:
            line = f"ok    {name}: {check()}"
        except Missing as error:
            failed += 1
            line = f"FAIL  {name}: {error}"
        except ImportError as error:
            failed += 1
            line = f"FAIL  {name}: cannot be checked, {error}"
        print(line)
    if failed:
        print(f"{failed} of {len(checks)} checks failed")
    return 1 if failed else 0


class Missing(Exception):
    """A check failed: what, and what to do."""


def _python() -> str:
    version = platform.python_version()
    if sys.version_info < LEAST_PYTHON:
        raise Missing(f"{version}, expected at least {'.'.join(map(str, LEAST_PYTHON))}")
    return f"{version}, {sys.executable}"


def _torch() -> str:
    version = _installed("torch", "pip install torch")
    import torch

    device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU (none is needed)"
    return f"{version}, {torch.get_num_threads()} threads{device}"


def _transformers() -> str:
    return _installed("transformers", "pip install 'transformers>=5.24'")


def _installed(package: str, remedy: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Missing(f"not installed; {remedy}") from None


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB memory"


def _sandbox() -> str:
    from treadle.envs.bubblewrap import BubblewrapSandbox

    reason = BubblewrapSandbox.available()
    if reason is not None:
        raise Missing(reason)
    return f"bubblewrap starts, {shutil.which('bwrap')}"


def _model(ref: str) -> str:
    from treadle.core.errors import ModelError
    from treadle.models.source import locate, require_chat_template

    try:
        source = locate(ref)
        if source.ready and source.folder is not None:
            require_chat_template(source.folder)
    except ModelError as error:
        raise Missing(str(error)) from None
    return source.line


def _cache() -> str:
    from treadle.models.source import cache_folder

    at = cache_folder()
    while not at.exists():
        at = at.parent
    return _writable(at, "TREADLE_CACHE=FOLDER")


def _writable(folder: Path, remedy: str) -> str:
    """Whether files can be made there and there is room."""
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            free = shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        raise Missing(f"{folder} cannot be written ({error.strerror}); set {remedy}") from None
    if free < LEAST_DISK_GB:
        raise Missing(f"{free:.1f} GB free under {folder}, expected at least {LEAST_DISK_GB:g}; set {remedy}")
    return f"{folder} can be written, {free:.0f} GB free"
