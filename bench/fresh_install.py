"""A fresh machine: clone into an empty folder and run only the README's two commands."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import machine

LINE = "clones into an empty folder and times `make train` and `make test`, as the README says"
FENCE = re.compile(r"```(?:sh|bash)\n(.*?)```", re.S)


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--skip-train", action="store_true", help="time only `make test`")
    parser.add_argument("--keep-runs", type=Path, metavar="FOLDER", help="copy the run folders of `make train` there")


def readme_commands(text: str) -> list[str]:
    """The `make` commands that the README names, in order, each once."""
    lines = [line.strip() for block in FENCE.findall(text) for line in block.splitlines()]
    return list(dict.fromkeys(line.split("#")[0].strip() for line in lines if line.startswith("make ")))


def run(args: argparse.Namespace) -> dict[str, object]:
    """Clone, run, time. The model cache is a fresh folder too, so that unpacking is in the figure."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="treadle-fresh-") as empty:
        clone = Path(empty) / "treadle"
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
        commands = readme_commands((clone / "README.md").read_text(encoding="utf-8"))
        wanted = [c for c in ("make train", "make test") if not (args.skip_train and c == "make train")]
        missing = [command for command in wanted if command not in commands]
        if missing:
            raise SystemExit(f"README.md does not name {', '.join(missing)}; it names {', '.join(commands)}")
        environment = {**os.environ, "TREADLE_CACHE": str(Path(empty) / "cache")}
        environment.pop("VIRTUAL_ENV", None)
        environment.pop("PYTHONPATH", None)
        seconds = {}
        for command in wanted:
            seconds[command] = _timed(command, clone, environment)
            if command == "make train" and args.keep_runs is not None:
                shutil.copytree(clone / "runs", args.keep_runs, dirs_exist_ok=True)
        reports = list((clone / "runs").glob("*/report.md"))
    return {
        "train_s": seconds.get("make train"), "test_s": seconds["make test"], "commands": wanted,
        "reports": len(reports), "machine": machine(),
    }


def _timed(command: str, folder: Path, environment: dict[str, str]) -> float:
    print(f"# {command}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    subprocess.run(command.split(), cwd=folder, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - began
