"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def machine() -> dict[str, object]:
    """Date, cores, processor, Python and torch."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "processor": _processor(),
        "python": platform.python_version(), "torch": torch.__version__,
    }


def steal_s() -> float:
    """Processor seconds that the host took away since boot; 0 where the system does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
