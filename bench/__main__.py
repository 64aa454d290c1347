"""`python -m bench [NAME] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

NAMES = (
    "main_job", "fresh_install", "ledger", "canary", "kill_resume", "faults", "schedule_sim", "deterministic",
    "decode", "multi_turn", "closed_loop", "rollout_overhead", "limits", "mixed", "tree_update", "scans", "fork",
    "tree_bias", "branching",
)
"""Modules of this package that are benchmarks."""


def main() -> int:
    """List, or run one."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        for name in NAMES:
            print(f"{name:<16} {importlib.import_module(f'bench.{name}').LINE}")
        return 0
    if sys.argv[1] not in NAMES:
        print(f"bench: unknown benchmark {sys.argv[1]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"bench.{sys.argv[1]}")
    parser = argparse.ArgumentParser(prog=f"python -m bench {sys.argv[1]}", description=module.LINE)
    parser.add_argument("--json", action="store_true", help="print one JSON line last, and nothing else on that line")
    module.add(parser)
    args = parser.parse_args(sys.argv[2:])
    record = module.run(args)
    print(json.dumps(record) if args.json else json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
