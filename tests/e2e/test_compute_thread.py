"""Whoever loads, generates, trains or saves: the arithmetic runs in the compute thread, the only one with helpers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from treadle.models import build_tiny

PROGRAM = """
import json, os, sys, threading
import numpy
import torch
import treadle
from treadle.core.config import read_sets
from treadle.recipes.catalog import find

def native():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

class Watch:
    # Counts while engine and learner still have their threads: a thread that ends takes its helpers along.
    seen = []

    def emit(self, event):
        if event.name == "evaluation.done":
            self.seen.append(native() - before)


torch.set_num_threads(2)
before = native()
sets = [f"runs={sys.argv[1]}", "pipeline.updates=1", "evaluation.tasks=2", "model=" + sys.argv[2]]
treadle.train(find("shell-smoke").changed(read_sets(sets)), listeners=[Watch()])
print(json.dumps({"helpers": Watch.seen[-1]}))
"""


def test_one_thread_of_a_run_has_helpers(tmp_path: Path) -> None:
    """OpenMP adds a native thread for every thread that runs its loops on two cores, and lets all of them sleep."""
    wide = build_tiny(tmp_path / "wide", hidden=256, heads=4, kv_heads=2, layers=2)  # loops too short run on one core
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "runs"), str(wide)],
        capture_output=True, text=True, timeout=300, check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"helpers": 1}
