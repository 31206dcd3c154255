"""Bandwidth as a function of the bytes moved: what a measured chip has instead of one figure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BandwidthCurve:
    """Best bandwidths `bandwidths` (B/s) measured at `sizes` (total bytes read and written, ascending).

    The curve is an upper envelope: no measured point lies above it, and the time it implies never falls as bytes grow
    (whoever can move more bytes in a time can move fewer in it). Build it with `BandwidthCurve.envelope`.
    """

    sizes: tuple[float, ...]
    bandwidths: tuple[float, ...]

    @classmethod
    def envelope(cls, points: Sequence[tuple[float, float]]) -> BandwidthCurve:
        """The envelope of (total bytes, B/s) points. Raises ValueError when there are none."""
        if not points:
            raise ValueError("a bandwidth curve needs at least one point")
        best: dict[float, float] = {}
        for size, bandwidth in points:
            best[size] = max(best.get(size, 0.0), bandwidth)
        sizes = sorted(best)
        for i in range(len(sizes) - 2, -1, -1):
            size, larger = sizes[i], sizes[i + 1]
            best[size] = max(best[size], best[larger] * size / larger)
        return cls(tuple(sizes), tuple(best[size] for size in sizes))

    def bandwidth_at(self, total_bytes: float) -> float:
        """B/s at `total_bytes`: log-log between the measured sizes (so time stays monotone), the ends outside."""
        if total_bytes <= self.sizes[0]:
            return self.bandwidths[0]
        if total_bytes >= self.sizes[-1]:
            return self.bandwidths[-1]
        i = bisect_right(self.sizes, total_bytes) - 1
        low, high = self.sizes[i], self.sizes[i + 1]
        share = math.log(total_bytes / low) / math.log(high / low)
        return self.bandwidths[i] * (self.bandwidths[i + 1] / self.bandwidths[i]) ** share
