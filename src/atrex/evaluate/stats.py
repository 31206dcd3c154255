"""Order statistics of timed calls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import binom


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0..100) by linear interpolation, as numpy's default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """A distribution-free confidence interval for the median, from order statistics (binomial with p = 1/2)."""
    ordered = sorted(values)
    n = len(ordered)
    low = int(binom.ppf((1 - confidence) / 2, n, 0.5))
    low = min(max(low - 1, 0), (n - 1) // 2)
    return ordered[low], ordered[n - 1 - low]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
