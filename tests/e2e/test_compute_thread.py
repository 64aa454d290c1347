"""Whoever loads, generates, trains or saves: the arithmetic runs in the compute thread, the only one with helpers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, sys, threading
import numpy
import torch
import treadle
from treadle.core.config import read_sets
from treadle.recipes.catalog import find

def native():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

torch.set_num_threads(2)
before = native()
sets = [f"runs={sys.argv[1]}", "pipeline.updates=2", "evaluation.tasks=2"]
treadle.train(find("shell-smoke").changed(read_sets(sets)))
print(json.dumps({"helpers": native() - before}))
"""


def test_one_thread_of_a_run_has_helpers(tmp_path: Path) -> None:
    """OpenMP adds a native thread for every thread that runs its loops on two cores, and lets all of them sleep."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"helpers": 1}
