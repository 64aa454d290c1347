"""The benchmark of scans times every scan on both shapes."""

from __future__ import annotations

import argparse

import numpy as np

from bench import scans

SCANS = ["child_mean", "descent", "down", "togo", "up"]


def test_every_scan_has_the_rate_of_its_slower_shape() -> None:
    record = scans.run(argparse.Namespace(segments=2000, repeats=1))
    rates, shapes = record["segments_per_s"], record["by_shape"]
    assert sorted(rates) == SCANS
    assert all(rates[name] == min(shapes["wide"][name], shapes["long"][name]) > 0 for name in SCANS)


def test_the_shapes_are_forests_of_forks_and_of_chains() -> None:
    wide, long = scans.forest_of(scans.wide(2000)), scans.forest_of(scans.long(2000))
    assert (np.bincount(wide.rollout_group) == scans.WIDTH * scans.FORKS**2).all()
    assert len(long.rollouts) == 8
    assert np.bincount(long.after[1:]).max() == 8
