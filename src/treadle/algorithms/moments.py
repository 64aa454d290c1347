"""Mean and variance by key, where an entry counts as often as rollouts run through it."""

from __future__ import annotations

import numpy as np

from treadle.trajectory.forest import Column, Index


def moments(x: Column, key: Index, weight: Column, *, ddof: int) -> tuple[Column, Column, Column]:
    """Mean, variance and total weight of each entry's key, all [len(x)]; variance 0 where the weight is <= ddof.

    `key` holds numbers >= 0; `weight` counts, >= 0; `ddof` 1 gives the sample variance and 0 the population's.
    """
    total = np.bincount(key, weights=weight).astype(np.float64)
    mean: Column = np.bincount(key, weights=weight * x) / np.maximum(total, 1.0)
    apart = x - mean[key]
    free = total - ddof
    variance = np.where(free > 0, np.bincount(key, weights=weight * apart**2) / np.where(free > 0, free, 1.0), 0.0)
    return mean[key], variance[key], total[key]


def standardised(x: Column, key: Index, weight: Column, *, ddof: int, eps: float) -> Column:
    """(x - mean) / (standard deviation + eps) within the key; 0 where fewer than two count."""
    mean, variance, total = moments(x, key, weight, ddof=ddof)
    return np.where(total >= 2, (x - mean) / (np.sqrt(variance) + eps), 0.0)
