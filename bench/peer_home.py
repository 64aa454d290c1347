"""Virtual environments of peers: one per list of packages, made on request in the cache folder, never in the project.

    python_of("trl", create=True) -> (its interpreter, "") or (None, why there is none)

A peer's packages are pinned in `bench/peers/NAME.txt`; torch is the project's own, by `constraints.txt`. The folder's
name holds a digest of both files, so that another pin is another environment. It is complete when its marker is there,
which is written last; a half-made one is made anew. A line `# without: PACKAGE ...` of the list names what pip installs
with the peer and must go again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from treadle.core.folders import discard
from treadle.models.source import cache_folder

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
MARKER = "treadle-peer-complete"
INSTALL_S = 3600.0
"""Longest that one installation may take."""


def pins(name: str) -> Path:
    """The list of a peer's packages."""
    return ROOT / "bench" / "peers" / f"{name}.txt"


def without(name: str) -> list[str]:
    """Packages that come with a peer and must go again."""
    told = (line.removeprefix("# without:") for line in pins(name).read_text().splitlines() if "# without:" in line)
    return [package for packages in told for package in packages.split()]


def home(name: str) -> Path:
    """Where a peer's virtual environment is, or would be."""
    digest = hashlib.blake2b(digest_size=6)
    for file in (pins(name), CONSTRAINTS):
        digest.update(file.read_bytes() + b"\0")
    digest.update(sys.version.encode())
    return cache_folder() / "peers" / f"{name}-{digest.hexdigest()}"


def python_of(name: str, *, create: bool) -> tuple[Path | None, str]:
    """The interpreter of a peer, made first where `create` says so; else None and why, in one line."""
    folder = home(name)
    python = folder / "bin" / "python"
    if (folder / MARKER).is_file():
        return python, ""
    if not create:
        return None, f"{name} is not installed; --with-peers installs it"
    discard(folder)
    pip = [str(python), "-m", "pip"]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", "-qq", "--no-input", "--constraint", str(CONSTRAINTS), "--requirement", str(pins(name))],
    ]
    if out := without(name):
        commands.append([*pip, "uninstall", "-qq", "--yes", *out])
    for command in commands:
        if said := _failed(command):
            return None, f"{name} could not be installed: {said}"
    (folder / MARKER).touch()
    return python, ""


def _failed(command: list[str]) -> str:
    """Run one step of an installation; empty when it went well, else the last line that it said."""
    print(f"# {' '.join(command)}", file=sys.stderr, flush=True)
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, env=kept | quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stdout.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
