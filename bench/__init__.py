"""Benchmarks: figures that the project claims, measured by one command each.

    python -m bench                     lists them
    python -m bench NAME --json         runs one; the last line printed is one JSON object

A benchmark is a module with `LINE` (what it shows), `add(parser)` and `run(args) -> dict`. Counts are raw (solved,
tasks), seconds are medians, and what a figure was measured on stands beside it.
"""
